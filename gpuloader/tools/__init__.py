"""What the commands do, except packing; each tool is a module here."""
