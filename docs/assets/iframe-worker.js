// A page that was opened from a disk may start no worker from a file, but it may from a text: that of the search lies
// in search/worker.js, which mkdocs_hooks.py writes. (The plugin `offline` fetches a stand-in from the net, unless a
// file of this name is there.)
if (location.protocol === "file:") {
  const source = new URL("../search/worker.js", document.currentScript.src);
  document.write(`<script src="${source}"></script>`);
  const Plain = window.Worker;
  window.Worker = class extends Plain {
    constructor() {
      super(URL.createObjectURL(new Blob([__worker], { type: "text/javascript" })));
    }
  };
}
