// The loop that keeps what is on screen true: after every change it sends what is new, adapts, and asks again.

import { current, listen, settled, signature, taught } from "/state.js";
import { t } from "/words.js";

const PAUSE = 120; // milliseconds in which further changes are waited for
const LATER = 2000; // until the next attempt at a server that is overloaded

export class Live {
  #timer = null;
  #running = false;
  #again = false;
  #conflict = null; // what the last answer was wanted for, if the server refused it

  /** `views` shows what comes: `render`, `learned`, `answered`, `refused`, `failed`, and has the `options` of questions. */
  constructor(session, views) {
    this.session = session;
    this.views = views;
    listen(() => this.changed());
  }

  /** What an answer must have been given for to be true now. */
  get wanted() {
    return signature() + this.views.options();
  }

  isStale({ picture }) {
    return picture.answeredFor !== this.wanted;
  }

  changed(pause = PAUSE) {
    this.#busy(true);
    this.views.render();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#run(), pause);
  }

  async #run() {
    this.#timer = null;
    this.#again = true;
    if (this.#running) return;
    this.#running = true;
    while (this.#again) {
      this.#again = false;
      await this.#cycle().catch((error) => this.#failed(error));
    }
    this.#running = false;
    this.#busy(false);
  }

  #failed(error) {
    if ([429, 503].includes(error.status)) this.changed(LATER);
    this.views.failed(error);
  }

  /** Waits until everything on screen is true. */
  async idle() {
    while (document.body.dataset.live === "busy") await new Promise((done) => setTimeout(done, PAUSE));
  }

  #busy(busy) {
    document.body.dataset.live = busy || this.#timer ? "busy" : "idle";
  }

  async #cycle() {
    if (this.session.learned !== signature() && !(await this.session.later(() => this.#adapt()))) return;
    await this.#answerAll();
  }

  /** Sends what has changed and adapts; false if there is more of it by then, or if there are too few classes. */
  async #adapt() {
    const wanted = signature();
    await this.session.match(current().classes, (picture, error) => this.views.refused(picture, error));
    if (wanted !== signature()) return this.#restart();
    const found = taught().length < 2 ? null : await this.session.send("POST", "/adapt");
    this.session.learned = found && wanted;
    this.views.learned(found);
    return found !== null;
  }

  async #answerAll() {
    const stale = current().asked.filter((each) => this.isStale(each));
    for (const question of stale) {
      const { picture } = question;
      const wanted = this.wanted;
      try {
        const answer = await this.session.later(() => this.session.classify(picture, this.views.options()));
        if (this.session.learned !== signature() || wanted !== this.wanted) return this.#restart();
        Object.assign(picture, { answer, answeredFor: wanted });
        this.#conflict = null;
      } catch (error) {
        const first = this.#conflict !== wanted;
        this.#conflict = wanted;
        if (error.status === 409 && first) return this.#restart(); // the pictures have changed meanwhile
        if (![400, 413, 415, 422].includes(error.status)) throw error;
        this.views.refused(picture, error);
      }
      this.views.render();
    }
    if (stale.length) this.views.answered(stale.filter((each) => each.picture.answer));
  }

  #restart() {
    this.session.learned = null;
    this.#again = true;
    return false;
  }
}

/** What the person has said, else what the model says, in words. */
export function labelOf(question) {
  const { answer } = question.picture;
  return settled(question)?.name ?? (answer?.unknown ? t("noneOfThese") : answer?.label ?? "…");
}
