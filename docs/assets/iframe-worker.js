// Browsers start no worker from file://. There the search's worker is an iframe with the same script.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        window.postMessage = data => frameElement.deliver(data);
        window.importScripts = (...urls) => Promise.all(urls.map(url => new Promise((done, failed) => {
          const script = document.createElement("script");
          Object.assign(script, {src: url, onload: done, onerror: failed});
          document.body.append(script);
        })));
        </scr` + `ipt><body><script src="${new URL(url, location.href)}"></scr` + `ipt>`;
      frame.deliver = data => this.dispatchEvent(new MessageEvent("message", { data }));
      const ready = new Promise(resolve => frame.addEventListener("load", resolve));
      this.postMessage = data =>
        ready.then(() => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
      const add = () => document.body.append(frame);
      document.body ? add() : addEventListener("DOMContentLoaded", add);
    }
  };
  window.Worker = window.IFrameWorker;
}
