// Requests to the server, one after another: what a person does last also happens last.

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server has forgotten this session, or was started anew. */
export class Lost extends Refused {}

export async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, { method, body });
  } catch {
    throw new Refused(0, "The server does not answer. Is “pathaware serve” still running?");
  }
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, found.error ?? `The server answered ${answer.status}.`);
  return found;
}

export class Session {
  #token = null;
  #last = Promise.resolve();

  async begin() {
    this.#token = (await call("POST", "/api/sessions")).session;
  }

  /** What `request()` makes of it once all that was asked before is done. */
  later(request) {
    const done = this.#last.then(request);
    this.#last = done.catch(() => {});
    return done;
  }

  async send(method, path, body) {
    try {
      return await call(method, this.#path(path), body);
    } catch (error) {
      if (error.status === 404 && !(await this.#known())) throw new Lost(404, error.message);
      throw error;
    }
  }

  /** All that a page that is being closed can still do. */
  forget() {
    if (this.#token) navigator.sendBeacon(this.#path("/forget"));
    this.#token = null;
  }

  #path(path) {
    return `/api/sessions/${this.#token}${path}`;
  }

  async #known() {
    return call("GET", this.#path("")).then(() => true, (error) => error.status !== 404);
  }
}
