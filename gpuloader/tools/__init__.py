"""What the commands do: packing aside, each tool is a module here."""
