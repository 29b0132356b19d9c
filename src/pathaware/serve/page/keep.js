// Files to keep: the classifier, the pictures sorted into folders, the answers as a table; and opening a classifier.

import { labelOf } from "/live.js";
import { $, blobOf } from "/pictures.js";
import { attempt } from "/problems.js";
import * as state from "/state.js";
import { t } from "/words.js";
import { paths, unzip, zip } from "/zip.js";

const CONTENTS = "pictures.json";
const FOLDER = "classifier"; // in the zip file
const ENDINGS = { "image/png": ".png", "image/jpeg": ".jpg" };

export class Keeping {
  /** `saved` is called when the present state is saved, or was opened. */
  constructor(session, model, saved) {
    this.session = session;
    this.saved = saved;
    $("#save").addEventListener("click", () => this.#attempt(() => this.#save()));
    $("#save-there").hidden = !model.save_to;
    $("#save-there").addEventListener("click", () => this.#attempt(() => this.#saveThere()));
    $("#open-file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = "";
      this.#attempt(() => this.#open(file));
    });
    $("#save-table").addEventListener("click", saveTable);
    $("#save-sorted").addEventListener("click", () => this.#attempt(saveSorted));
  }

  render() {
    const ready = state.taught().length > 1;
    for (const id of ["#save", "#save-there"]) $(id).disabled = !ready;
  }

  #attempt(doing) {
    $("#keep-status").textContent = "";
    return attempt($("#keep-problem"), doing);
  }

  /** The classifier as the server writes it, and the pictures themselves, so that it can be opened here again. */
  async #save() {
    const present = state.current();
    const file = await this.session.later(() => this.#request("/save", "blob"));
    const names = paths(state.taught().flatMap((g) => g.pictures.map((p) => [g.name, titleWithEnding(p)])));
    const pictures = state.taught().flatMap((group) => group.pictures);
    const path = new Map(pictures.map((picture, i) => [picture, `pictures/${names[i]}`]));
    const contents = state.taught().map((group) => ({
      name: group.name,
      pictures: group.pictures.map((picture) => ({ title: picture.title, file: path.get(picture) })),
    }));
    const added = await Promise.all(pictures.map(async (p) => ({ name: path.get(p), blob: await blobOf(p) })));
    const entries = [...(await unzip(file)), { name: CONTENTS, blob: new Blob([JSON.stringify(contents)]) }, ...added];
    download(await zip(entries.map(({ name, blob }) => ({ name: `${FOLDER}/${name}`, blob }))), `${FOLDER}.zip`);
    $("#keep-status").textContent = t("saved", FOLDER);
    if (present === state.current()) this.saved();
  }

  async #saveThere() {
    const present = state.current();
    const { folder } = await this.session.later(() => this.#request("/save?there=true", "json"));
    $("#keep-status").textContent = t("savedThere", folder);
    if (present === state.current()) this.saved();
  }

  /** Asks for something of a classifier of the present pictures; the server may not have the latest yet. */
  async #request(path, form) {
    const fail = (_, error) => {
      throw error;
    };
    await this.session.match(state.current().classes, fail);
    return this.session.send("POST", path, undefined, form);
  }

  async #open(file) {
    const entries = await unzip(file).catch(() => []);
    const contents = entries.find((each) => each.name.split("/").at(-1) === CONTENTS);
    if (!contents) throw new Error(t("notSaved"));
    const root = contents.name.slice(0, -CONTENTS.length);
    const blobs = new Map(entries.map(({ name, blob }) => [name, blob]));
    const classes = JSON.parse(await contents.blob.text()).map(({ name, pictures }) => ({
      key: state.newKey(),
      name,
      pictures: pictures.map(({ title, file: path }) => state.newPicture(blobs.get(root + path), title)),
    }));
    state.change({ classes }, t("opened", file.name));
    $("#keep-status").textContent = t("opened", file.name);
    this.saved();
  }
}

/** Saves all answers as the file that `pathaware predict --out answers.csv` would write. */
function saveTable() {
  const answered = state.current().asked.filter((each) => each.picture.answer);
  const names = [...new Set(answered.flatMap(({ picture }) => Object.keys(picture.answer.probabilities)))].sort();
  const first = ["picture", "label", "probability"];
  const rows = answered.map((question) => {
    const { title, answer } = question.picture;
    const label = labelOf(question);
    const numbers = [answer.probabilities[label] ?? answer.probabilities[answer.label], ...names.map((name) => answer.probabilities[name])];
    return [title, label, ...numbers.map((number) => number?.toFixed(6) ?? "")];
  });
  const header = [...first, ...names.map((name) => (first.includes(name) ? `${name} (class)` : name))];
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const text = [header, ...rows].map((row) => `${row.map(quoted).join(",")}\n`).join("");
  download(new Blob(["\ufeff", text], { type: "text/csv" }), "answers.csv"); // the mark is for spreadsheets
}

/** Saves the pictures that were asked about, in a folder for each label. */
async function saveSorted() {
  const answered = state.current().asked.filter((each) => each.picture.answer);
  const names = paths(answered.map((each) => [labelOf(each), titleWithEnding(each.picture)]));
  download(await zip(answered.map(({ picture }, i) => ({ name: names[i], blob: picture.blob }))), "sorted.zip");
}

const titleWithEnding = ({ title, blob }) => (/\.\w+$/.test(title) ? title : title + (ENDINGS[blob?.type] ?? ".png"));

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
