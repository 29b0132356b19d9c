// Requests to the server, one at a time and in order.

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server has deleted this session or was restarted. */
export class Lost extends ApiError {}

export async function call(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, { method, body });
  } catch {
    throw new ApiError(0, "The server does not answer. Is “pathaware serve” still running?");
  }
  if (answer.status === 204) return null;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, found.error ?? `The server answered ${answer.status}.`);
  return found;
}

export class Session {
  #token = null;
  #last = Promise.resolve();

  /** Begins a session, empty or with the pictures of a saved classifier; returns their ids and labels. */
  async begin(saved = false) {
    const begun = await call("POST", `/api/sessions${saved ? "?saved=true" : ""}`);
    this.#token = begun.session;
    return begun.pictures ?? [];
  }

  /** Runs `request()` after all earlier requests. */
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

  /** Ends the session; a closing page can send nothing but a beacon. */
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
