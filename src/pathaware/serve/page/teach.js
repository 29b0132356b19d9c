// Teaching: a card for each class, with its pictures.

import { byClass, takesDrops, titleOf } from "/drops.js";
import { $, arrange, button, make, thumbnail } from "/pictures.js";
import { attempt, tell } from "/problems.js";
import * as state from "/state.js";
import { t } from "/words.js";

const UNSEEN = /[^\P{C}\u200c\u200d]|[\p{Zl}\p{Zp}\ufffd]/u; // joiners are part of words
const NOTHING = /^[\p{C}\p{Z}\p{M}]*$/u;

export class Teaching {
  #cards = new Map(); // by key of the class
  #items = new Map(); // of pictures, by their key
  #draw;
  #record;

  /** `draw` and `record` open the ways to make a picture for a class, by its key. */
  constructor(session, model, draw, record) {
    this.session = session;
    this.model = model;
    this.#draw = draw;
    this.#record = record;
    $("#add-class").addEventListener("click", () => this.addClass());
    const drop = (found) => attempt($("#teach-problem"), async () => this.#teachDropped(await found));
    takesDrops($("#teach"), drop);
  }

  render() {
    const { classes } = state.current();
    const { limits } = this.model;
    const known = new Set(classes.map((group) => group.key));
    for (const key of this.#cards.keys()) if (!known.has(key)) this.#cards.delete(key);
    arrange($("#classes"), classes.map((group, i) => this.#card(group, i)));
    $("#add-class").disabled = classes.length >= limits.classes;
    const count = classes.reduce((sum, group) => sum + group.pictures.length, 0);
    $("#limits").textContent = t("limits", classes.length, count, limits);
  }

  #card(group, place) {
    if (!this.#cards.has(group.key)) this.#cards.set(group.key, this.#newCard(group.key));
    const card = this.#cards.get(group.key);
    const { name, pictures } = group;
    if ($(".name", card).dataset.kept !== name) $(".name", card).value = $(".name", card).dataset.kept = name;
    $(".key", card).textContent = place < 9 ? place + 1 : "";
    $(".count", card).textContent = t("countOf", pictures.length, this.model.limits.pictures_per_class);
    card.ariaLabel = t("classCalled", name);
    $("input[type=file]", card).ariaLabel = t("addTo", name);
    $(".draw", card).ariaLabel = t("drawFor", name);
    $(".record", card).ariaLabel = t("recordFor", name);
    $(".remove-class", card).ariaLabel = t("removeClass", name);
    arrange($(".thumbs", card), pictures.map((picture) => this.#item(picture, name)));
    return card;
  }

  #newCard(key) {
    const card = $("#class-card").content.firstElementChild.cloneNode(true);
    const files = $("input[type=file]", card);
    card.dataset.key = key;
    $(".name", card).addEventListener("change", () => this.#rename(key));
    $(".remove-class", card).addEventListener("click", () => this.#removeClass(key));
    $(".draw", card).hidden = !this.model.ink;
    $(".draw", card).addEventListener("click", () => this.#draw(key));
    $(".record", card).addEventListener("click", () => this.#record(key));
    files.addEventListener("change", () => {
      this.teach(key, [...files.files]);
      files.value = "";
    });
    takesDrops(card, (found) => attempt($(".problem", card), async () => this.#teachDropped(await found, key)));
    return card;
  }

  #item(picture, name) {
    if (!this.#items.has(picture.key)) {
      const remove = button("×", () => this.#removePicture(picture), "remove");
      this.#items.set(picture.key, make("li", "", thumbnail(picture), remove));
    }
    const item = this.#items.get(picture.key);
    $(".remove", item).ariaLabel = t("removePicture", picture.title, name);
    return item;
  }

  /** The element of a picture that is taught, to mark it. */
  itemOf(picture) {
    return this.#items.get(picture.key);
  }

  problemOf(key) {
    return $(".problem", this.#cards.get(key) ?? document);
  }

  addClass(name = freeName(), select = true) {
    const group = { key: state.newKey(), name, pictures: [] };
    state.change(state.withClass(group), t("addedClass", name));
    if (select) $(".name", this.#cards.get(group.key)).select();
    return group;
  }

  #rename(key) {
    const field = $(".name", this.#cards.get(key));
    attempt(this.problemOf(key), () => {
      const name = checkedName(field.value);
      const was = state.classAt(key).name;
      if (name !== was && state.classNamed(name)) throw new Error(t("nameTaken", name));
      if (name !== was) state.change(state.changed(key, { name }), t("renamed", was, name));
    });
    field.value = state.classAt(key).name;
  }

  #removeClass(key) {
    const { name } = state.classAt(key);
    state.change(state.withoutClass(key), t("removedClass", name));
    $("#add-class").focus();
  }

  #removePicture(picture) {
    const group = state.classWith(picture);
    state.change(state.withoutPicture(picture), t("removed", picture.title, group.name));
    $("input[type=file]", this.#cards.get(group.key)).focus();
  }

  /** Why a class can take no more pictures, if so. */
  full(key) {
    const { limits } = this.model;
    const classes = state.taught();
    if (state.classAt(key).pictures.length >= limits.pictures_per_class) return t("fullClass", limits.pictures_per_class);
    if (classes.flatMap((group) => group.pictures).length >= limits.pictures) return t("fullSession", limits.pictures);
    if (classes.length >= limits.classes && !state.classAt(key).pictures.length) return t("fullClasses", limits.classes);
    return null;
  }

  /** Adds the files that the server can read to a class, and tells of the others; returns how many were added. */
  async teach(key, files, titles = files.map((file) => file.name), step = {}) {
    const problem = this.problemOf(key);
    problem.textContent = "";
    let added = 0;
    for (const [i, blob] of files.entries()) {
      const why = state.classAt(key) ? this.full(key) : null;
      if (why) {
        const left = files.length - i - 1; // there is no room for them either
        tell(problem, new Error(left ? `${why}\n${t("leftOut", left)}` : why), titles[i]);
        break;
      }
      try {
        if (await this.session.later(() => this.#add(key, state.newPicture(blob, titles[i]), step, added + 1))) added++;
      } catch (error) {
        tell(problem, error, titles[i]);
        if (error.status === 0) break;
      }
    }
    return added;
  }

  async #add(key, picture, step, count) {
    if (!state.classAt(key)) return false; // removed meanwhile
    await this.session.put(picture, state.classAt(key).name);
    if (!state.classAt(key)) return false;
    state.change(state.withPictures([[picture, key]]), t("added", count, state.classAt(key).name), step);
    return true;
  }

  /** Teaches what was dropped on a class, or beside all of them. Folders are classes, unless one is for this class. */
  async #teachDropped(found, key) {
    if (!found.length) throw new Error(t("noPictures"));
    const folders = byClass(found);
    if (!key && folders.has("")) throw new Error(t("dropOnClass"));
    for (const [folder, members] of folders) {
      const name = folder.normalize("NFC").trim().slice(0, this.model.limits.label_characters);
      const given = key && state.classAt(key);
      const same = state.classNamed(name);
      let to = !name || folders.size === 1 ? given : undefined;
      to ??= same ?? state.current().classes.find(untouched) ?? this.addClass(name, false);
      if (name && !same && untouched(to)) state.change(state.changed(to.key, { name }), t("renamed", to.name, name));
      await this.teach(to.key, members.map((each) => each.file), members.map(titleOf));
    }
  }

  /** Gives a picture that is taught another label. */
  move(picture, to) {
    const why = this.full(to);
    if (why) return tell(this.problemOf(to), new Error(why), picture.title);
    state.change(state.withPictures([[picture, to]]), t("saidThis", picture.title, state.classAt(to).name));
  }
}

export function freeName() {
  for (let number = 1; ; number++) if (!state.classNamed(t("className", number))) return t("className", number);
}

/** Whether a class is as the page made it, so that it can take the name of a folder. */
const untouched = (group) => !group.pictures.length && freeNames().includes(group.name);
const freeNames = () => Array.from({ length: state.current().classes.length + 1 }, (_, i) => t("className", i + 1));

function checkedName(text) {
  const name = text.normalize("NFC").trim();
  if (NOTHING.test(name)) throw new Error(t("nameEmpty"));
  if (UNSEEN.test(name) || [".", ".."].includes(name)) throw new Error(t("nameRefused"));
  return name;
}

/** A choice of the classes but one; `choose` takes the key. */
export function classChoice(label, without, choose) {
  const choice = make("select");
  choice.ariaLabel = label;
  choice.append(new Option(t("thisIs"), ""));
  for (const group of state.current().classes) if (group !== without) choice.append(new Option(group.name, group.key));
  choice.addEventListener("change", () => choice.value && choose(choice.value));
  return choice;
}
