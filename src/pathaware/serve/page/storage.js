// The work of a tab, kept in this browser: a reload, a crash or a closed tab loses nothing.

import { current } from "/state.js";

const DAYS = 30;
const [WORKS, PICTURES] = ["works", "pictures"];

const done = (request) =>
  new Promise((found, failed) => {
    request.onsuccess = () => found(request.result);
    request.onerror = () => failed(request.error);
  });

function opened() {
  const request = indexedDB.open("pathaware", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore(WORKS, { keyPath: "work" });
    request.result.createObjectStore(PICTURES, { keyPath: ["work", "key"] });
  };
  return done(request);
}

/** Holds the name of a work as long as the tab lives, so that two tabs do not write the same. */
function claim(work) {
  if (!navigator.locks) return sessionStorage.getItem("work") === work; // not over plain HTTP
  return new Promise((claimed) => {
    navigator.locks.request(`work ${work}`, { ifAvailable: true }, (lock) => {
      claimed(Boolean(lock));
      return lock ? new Promise(() => {}) : undefined;
    });
  });
}

/** Where a picture is from: the server has those of a saved classifier. */
const origin = (blob, { saved, address }) => (address ? { saved, address } : { blob });
const ofWork = (work) => IDBKeyRange.bound([work], [work, []]);

export class Storage {
  #base;
  #work;
  #stored = new Set(); // keys of pictures
  #writing = null;
  #again = false;

  constructor(model, failed) {
    this.model = model;
    this.failed = failed;
  }

  /** Finds the latest work with this model that no other tab has open; returns its state, or null. */
  async begin() {
    this.#base = await opened();
    const works = (await done(this.#store(WORKS).getAll())).sort((a, b) => b.at - a.at);
    for (const each of works.filter((other) => Date.now() - other.at > DAYS * 86_400_000)) await this.#remove(each.work);
    for (const each of works) {
      if (each.model !== this.model || !(await claim(each.work))) continue;
      this.#work = each.work;
      return this.#state(each);
    }
    this.#work = `${Date.now()}-${Math.random()}`;
    sessionStorage.setItem("work", this.#work);
    await claim(this.#work);
    return null;
  }

  async #state({ classes, asked, unsaved }) {
    const pictures = new Map((await done(this.#store(PICTURES).getAll(ofWork(this.#work)))).map((each) => [each.key, each]));
    this.#stored = new Set(pictures.keys());
    for (const each of pictures.values()) delete each.work;
    return {
      unsaved,
      classes: classes.map((group) => ({ ...group, pictures: group.pictures.map((key) => pictures.get(key)) })),
      asked: asked.map(({ picture, accepted }) => ({ picture: pictures.get(picture), accepted })),
    };
  }

  /** Writes the present state, and once more if it changes meanwhile. */
  write(unsaved) {
    this.unsaved = unsaved;
    if (!this.#base) return;
    this.#again = true;
    this.#writing ??= this.#writeAll().finally(() => (this.#writing = null));
  }

  async #writeAll() {
    while (this.#again) {
      this.#again = false;
      await this.#writeOnce().catch(this.failed);
    }
  }

  async #writeOnce() {
    const { classes, asked } = current();
    const shown = [...classes.flatMap((group) => group.pictures), ...asked.map((each) => each.picture)];
    const pictures = new Map(shown.map((picture) => [picture.key, picture]));
    const transaction = this.#base.transaction([WORKS, PICTURES], "readwrite");
    const finished = new Promise((written, failed) => {
      transaction.oncomplete = written;
      transaction.onabort = () => failed(transaction.error);
    });
    transaction.objectStore(WORKS).put({
      work: this.#work,
      model: this.model,
      at: Date.now(),
      unsaved: this.unsaved,
      classes: classes.map((group) => ({ ...group, pictures: group.pictures.map((picture) => picture.key) })),
      asked: asked.map(({ picture, accepted }) => ({ picture: picture.key, accepted })),
    });
    const store = transaction.objectStore(PICTURES);
    for (const key of this.#stored) if (!pictures.has(key)) store.delete([this.#work, key]);
    for (const { key, blob, title, ...rest } of pictures.values()) {
      if (!this.#stored.has(key)) store.put({ work: this.#work, key, title, ...origin(blob, rest) });
    }
    await finished;
    this.#stored = new Set(pictures.keys());
  }

  /** Deletes everything that this page has kept in this browser, of all its tabs. */
  async forget() {
    await this.#writing;
    await Promise.all([WORKS, PICTURES].map((name) => done(this.#store(name, "readwrite").clear())));
    this.#stored.clear();
  }

  async #remove(work) {
    await done(this.#store(WORKS, "readwrite").delete(work));
    await done(this.#store(PICTURES, "readwrite").delete(ofWork(work)));
  }

  #store(name, mode = "readonly") {
    return this.#base.transaction(name, mode).objectStore(name);
  }
}
