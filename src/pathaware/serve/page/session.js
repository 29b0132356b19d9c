// The server's session, made to agree with what the page shows. Requests are sent one at a time and in order.

import { blobOf, scaledDown } from "/pictures.js";
import { t } from "/words.js";

const SAID = [400, 408, 413, 415, 422, 429, 503]; // what the page has its own words for

export class ApiError extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server has deleted this session or was restarted. */
export class Lost extends ApiError {}

export async function call(method, path, body, form = "json") {
  let answer;
  try {
    answer = await fetch(path, { method, body });
  } catch {
    throw new ApiError(0, t("noServer"));
  }
  if (answer.status === 204) return null;
  if (answer.ok) return answer[form]();
  const { error = "" } = await answer.json().catch(() => ({}));
  const sentence = SAID.includes(answer.status) ? t(`error${answer.status}`) : t("error", error || answer.status);
  throw new ApiError(answer.status, sentence);
}

export class Session {
  #token = null;
  #last = Promise.resolve();
  #labels = new Map(); // of the pictures that the server has, by their ids
  #begun = []; // ids of the pictures of a saved classifier
  learned = null; // the signature of what the classifier has learned

  constructor(saved, limits) {
    this.saved = saved;
    this.limits = limits;
  }

  /** Begins a session, empty or with the pictures of a saved classifier; returns their ids and labels. */
  async begin() {
    const begun = await call("POST", `/api/sessions${this.saved ? "?saved=true" : ""}`);
    const pictures = begun.pictures ?? [];
    this.#token = begun.session;
    this.#labels = new Map(pictures.map(({ picture, label }) => [picture, label]));
    this.#begun = pictures.map(({ picture }) => picture);
    this.learned = null;
    return pictures;
  }

  /** Runs `request()` after all earlier requests, and again in a new session if the server has lost this one. */
  later(request) {
    const done = this.#last.then(() => this.#tryTwice(request));
    this.#last = done.catch(() => {});
    return done;
  }

  async #tryTwice(request) {
    try {
      return await request();
    } catch (error) {
      if (!(error instanceof Lost)) throw error;
      await this.begin();
      return request();
    }
  }

  /** The id of a taught picture, if the server has it. */
  idOf(picture) {
    return [picture.id, this.#begun[picture.saved]].find((id) => this.#labels.has(id));
  }

  async put(picture, label) {
    const found = await this.#sendPicture(`/pictures?label=${encodeURIComponent(label)}`, await blobOf(picture));
    picture.id = found.picture;
    this.#labels.set(found.picture, found.label);
  }

  /** Makes the server's pictures and labels those of these classes; `refused` takes those that it does not. */
  async match(classes, refused) {
    const wanted = new Map(classes.flatMap(({ pictures, name }) => pictures.map((picture) => [picture, name])));
    const kept = new Set([...wanted.keys()].map((picture) => this.idOf(picture)));
    for (const id of [...this.#labels.keys()]) {
      if (kept.has(id)) continue;
      await this.send("DELETE", `/pictures/${id}`);
      this.#labels.delete(id);
    }
    for (const group of classes) await this.#rename(group);
    for (const [picture, name] of wanted) {
      const id = this.idOf(picture);
      if (id && this.#labels.get(id) === name) continue;
      try {
        if (!id) await this.put(picture, name);
        else await this.send("POST", `/pictures/${id}?label=${encodeURIComponent(name)}`);
        this.#labels.set(this.idOf(picture), name);
      } catch (error) {
        if (![409, 413, 415, 422].includes(error.status)) throw error;
        refused(picture, error);
      }
    }
  }

  /** Renames a class as a whole, if it was renamed: picture by picture there would be one class more meanwhile. */
  async #rename({ name, pictures }) {
    const ids = pictures.map((picture) => this.idOf(picture)).filter(Boolean);
    const was = this.#labels.get(ids[0]);
    const members = [...this.#labels].filter(([, label]) => label === was).map(([id]) => id);
    const whole = members.length === ids.length && members.every((id) => ids.includes(id));
    if (!ids.length || was === name || !whole || [...this.#labels.values()].includes(name)) return;
    await this.send("POST", `/labels/${encodeURIComponent(was)}?to=${encodeURIComponent(name)}`);
    for (const id of ids) this.#labels.set(id, name);
  }

  /** The answer about a picture, which the server keeps, so that it is sent once only. */
  async classify(picture, options) {
    if (picture.kept) {
      try {
        return await this.send("POST", `/classify?picture=${picture.kept}${options}`);
      } catch (error) {
        if (error.status !== 404 || error instanceof Lost) throw error;
      }
    }
    const answer = await this.#sendPicture(`/classify?keep=true${options}`, await blobOf(picture));
    picture.kept = answer.picture;
    return answer;
  }

  async send(method, path, body, form) {
    if (!this.#token) throw new Lost(404, t("noSession"));
    try {
      return await call(method, this.#path(path), body, form);
    } catch (error) {
      if (error.status === 404 && !(await this.#known())) throw new Lost(404, t("noSession"));
      throw error;
    }
  }

  /** Sends a picture, scaled down first if it is too large and the browser can read it. */
  async #sendPicture(path, blob) {
    try {
      if (blob.size > this.limits.upload_bytes) throw new ApiError(413, t("error413"));
      return await this.send("POST", path, blob);
    } catch (error) {
      const smaller = error.status === 413 ? await scaledDown(blob) : null;
      if (!smaller) throw error;
      return this.send("POST", path, smaller);
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
