// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Requests to the server. The token is sent in a header, which EventSource does not support, so
// server-sent events are read with fetch().

const tokenName = "ebbtide-token";
const silent = 45_000; // ms without events after which a stream is considered dead

export const getToken = () => sessionStorage.getItem(tokenName) ?? "";
export function setToken(token) {
  if (token) sessionStorage.setItem(tokenName, token);
  else sessionStorage.removeItem(tokenName);
}

function headers(more = {}) {
  const token = getToken();
  return token ? { "X-Nomad-Token": token, ...more } : more;
}

/** An error response, with the server's text. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answer(response) {
  if (response.ok) return response;
  throw new Refused(response.status, (await response.text()).trim() || response.statusText);
}

/** Requests an object. */
export async function ask(path, params) {
  return (await answer(await fetch(`${path}?${new URLSearchParams(params)}`, { headers: headers() }))).json();
}

/** Reports the tasks on the screen. */
export function tell(id, tasks) {
  return fetch("api/visible", { method: "PUT", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify({ id, tasks }) });
}

/** Reads events until the stream ends, and calls on(event, data) for each. */
async function read(signal, on) {
  const response = await answer(await fetch("api/events", { headers: headers(), signal }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const text = rest.slice(0, end);
      rest = rest.slice(end + 2);
      const at = text.indexOf("\ndata: ");
      if (text.startsWith("event: ") && at > 0) on(text.slice(7, at), JSON.parse(text.slice(at + 7)));
    }
  }
}

/**
 * Reads events while the page is visible. It calls on(event, data), and failed(error) when a
 * stream has ended. It stops after 401 and 403, which need another token.
 */
export class Stream {
  #abort = null;
  #run = 0;
  #refused = false;
  #hidden = 0; // timer

  constructor(on, failed) {
    this.on = on;
    this.failed = failed;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.start()));
  }

  #pause() {
    // A tab that is briefly hidden keeps its stream.
    clearTimeout(this.#hidden);
    this.#hidden = setTimeout(() => this.stop(), 20_000);
  }

  stop() {
    this.#run++;
    this.#abort?.abort();
    this.#abort = null;
  }

  /** Restarts with another token. */
  restart() {
    this.#refused = false;
    this.stop();
    this.start();
  }

  async start() {
    clearTimeout(this.#hidden);
    if (this.#abort || this.#refused) return;
    const run = ++this.#run;
    for (let wait = 1000; run === this.#run; wait = Math.min(2 * wait, 15_000)) {
      const abort = new AbortController();
      this.#abort = abort;
      let dead = setTimeout(() => abort.abort(), silent);
      try {
        await read(abort.signal, (event, data) => {
          clearTimeout(dead);
          dead = setTimeout(() => abort.abort(), silent);
          wait = 1000;
          if (event === "denied") throw new Refused(403, data);
          this.on(event, data);
        });
        if (run === this.#run) this.failed(new Error("the connection has ended"));
      } catch (error) {
        if (run !== this.#run) return;
        this.failed(error);
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.#refused = true;
          this.stop();
          return;
        }
      } finally {
        clearTimeout(dead);
        abort.abort();
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}
