// Browsers let no page that was opened from a file start a worker. The search of Material asks
// for one, so here a hidden frame stands in for it; where there is a server nothing is replaced.
"use strict"
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      document.body.append(this.frame)
      this.inner = this.frame.contentWindow
      // A worker's own words: scripts one after the other, and messages to who made it.
      this.inner.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => this.load(source)), Promise.resolve())
      this.inner.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.ready = this.load(url)
    }

    load(source) {
      return new Promise((resolve, reject) => {
        const script = this.inner.document.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        this.inner.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() =>
        this.inner.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
