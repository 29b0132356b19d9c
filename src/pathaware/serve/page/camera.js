// The camera: hold to record pictures of a class, and answers about what it sees.

import { $, arrange, button, jpeg, make } from "/pictures.js";
import { attempt } from "/problems.js";
import * as state from "/state.js";
import { t } from "/words.js";

const EVERY = 250; // milliseconds between recorded pictures
const SIDE = 480; // longest side of a picture
const WAIT = 100; // before the next attempt while the classifier adapts

/** Shows the camera in a video element, or throws a sentence that says why not. */
async function open(video) {
  if (!navigator.mediaDevices) throw new Error(t("cameraInsecure"));
  try {
    const wanted = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 480 } };
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: wanted });
    await video.play();
  } catch (error) {
    const known = { NotAllowedError: "cameraDenied", NotFoundError: "cameraMissing", NotReadableError: "cameraBusy" };
    throw new Error(t(known[error.name] ?? "cameraFailed"));
  }
}

function close(video) {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
}

const frame = (video) => jpeg(video, video.videoWidth, video.videoHeight, SIDE);
const pause = (time) => new Promise((done) => setTimeout(done, time));
let taken = 0;

/** The dialog in which one holds a button to record pictures of a class. */
export class Recorder {
  #key;
  #held = false;
  #count = 0;

  constructor(teaching) {
    this.teaching = teaching;
    const hold = $("#record-hold");
    hold.addEventListener("pointerdown", (event) => {
      hold.setPointerCapture(event.pointerId);
      this.#record();
    });
    for (const kind of ["pointerup", "pointercancel", "keyup", "blur"]) hold.addEventListener(kind, () => (this.#held = false));
    hold.addEventListener("keydown", (event) => {
      if (![" ", "Enter"].includes(event.key)) return;
      event.preventDefault();
      if (!event.repeat) this.#record();
    });
    hold.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
    $("#record-done").addEventListener("click", () => $("#recording").close());
    $("#recording").addEventListener("close", () => {
      this.#held = false;
      close($("#record-video"));
    });
  }

  async open(key) {
    this.#key = key;
    this.#count = 0;
    $("#record-title").textContent = t("recordFor", state.classAt(key).name);
    $("#record-hold").disabled = true;
    $("#record-status").textContent = "";
    $("#recording").showModal();
    await attempt($("#record-problem"), () => open($("#record-video")));
    if (!$("#recording").open) return close($("#record-video")); // closed while the browser asked
    $("#record-hold").disabled = !$("#record-video").srcObject;
    $("#record-hold").focus();
  }

  async #record() {
    const video = $("#record-video");
    if (this.#held || !video.srcObject) return;
    this.#held = true;
    const step = {};
    $("#record-hold").classList.add("held");
    do {
      const next = pause(EVERY);
      const added = await this.teaching.teach(this.#key, [await frame(video)], [t("recorded", ++taken)], step);
      this.#count += added;
      $("#record-status").textContent = t("recordedCount", this.#count);
      $("#record-problem").textContent = this.teaching.problemOf(this.#key).textContent;
      if (!added) break;
      await next;
    } while (this.#held);
    this.#held = false;
    $("#record-hold").classList.remove("held");
  }
}

/** Answers about what the camera sees, one after the other; pressing a class teaches what it sees now. */
export class Watcher {
  #on = false;
  #bars = new Map(); // by key of the class

  constructor(session, teaching) {
    this.session = session;
    this.teaching = teaching;
    $("#watch").addEventListener("click", () => (this.#on ? this.#stop() : this.#start()));
  }

  async #start() {
    this.#on = true;
    $("#watching").hidden = false;
    $("#watch").textContent = t("stopWatching");
    await attempt($("#watch-problem"), async () => {
      await open($("#watch-video"));
      while (this.#on) await this.#look();
    });
    this.#stop();
  }

  #stop() {
    this.#on = false;
    close($("#watch-video"));
    $("#watching").hidden = true;
    $("#watch").textContent = t("watch");
  }

  async #look() {
    const blob = await frame($("#watch-video"));
    if (!this.session.learned) return this.#wait();
    try {
      const answer = await this.session.later(() => this.session.send("POST", "/classify", blob));
      this.#show(answer);
    } catch (error) {
      if (![409, 503].includes(error.status)) throw error;
      await this.#wait(); // it adapts
    }
  }

  #wait() {
    if (state.taught().length < 2) $("#watch-label").textContent = t("needTwo");
    return pause(WAIT);
  }

  #show(answer) {
    const classes = state.taught().filter((group) => group.name in answer.probabilities);
    const shown = classes.map((group) => this.#bar(group));
    for (const [i, group] of classes.entries()) {
      const share = `${(100 * answer.probabilities[group.name]).toFixed(0)} %`;
      $(".bar-name", shown[i]).textContent = group.name;
      $(".track span", shown[i]).style.width = share.replace(" ", "");
      $(".bar-number", shown[i]).textContent = share;
    }
    arrange($("#watch-bars"), shown);
    $("#watch-label").textContent = answer.label;
    $("#watching").dataset.answers = Number($("#watching").dataset.answers ?? 0) + 1;
  }

  #bar({ key }) {
    if (!this.#bars.has(key)) {
      const press = button("", () => this.#teach(key), "bar");
      press.append(make("span", "bar-name"), make("span", "track", make("span")), make("span", "bar-number"));
      this.#bars.set(key, press);
    }
    return this.#bars.get(key);
  }

  async #teach(key) {
    await this.teaching.teach(key, [await frame($("#watch-video"))], [t("recorded", ++taken)]);
    $("#ask-problem").textContent = this.teaching.problemOf(key).textContent;
  }
}
