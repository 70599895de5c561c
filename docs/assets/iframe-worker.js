// Search when the site is opened from a folder: browsers start no Worker for a page whose address is file:. Its script
// runs in a hidden frame of the page instead. mkdocs-material loads such a class from a network by default.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      inner.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve())
      this.ready = this.load(String(url))
    }
    load(url) {
      const inner = this.frame.contentWindow.document
      return new Promise((done, failed) => {
        const script = inner.createElement("script")
        Object.assign(script, {src: url, onload: done, onerror: failed})
        inner.body.appendChild(script)
      })
    }
    postMessage(data) {
      const inner = this.frame.contentWindow
      this.ready.then(() => inner.dispatchEvent(new inner.MessageEvent("message", {data})))
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker
}
