// Browsers start no workers for pages opened from disk, and the site's search runs in one. There, a
// worker's script runs in a hidden frame instead: the same messages, on the page's thread.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.receive(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
      script.src = new URL(url, location.href).href;
      this.inside.document.body.append(script);
    }

    receive(event) {
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      const event = new this.inside.MessageEvent("message", { data });
      this.ready.then(() => this.inside.dispatchEvent(event));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
