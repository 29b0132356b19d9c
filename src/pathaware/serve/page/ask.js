// Asking: the pictures that were asked about, their answers, and setting them right.

import { takesDrops, titleOf } from "/drops.js";
import { labelOf } from "/live.js";
import { $, arrange, button, make, thumbnail } from "/pictures.js";
import { attempt, tell } from "/problems.js";
import * as state from "/state.js";
import { classChoice } from "/teach.js";
import { t } from "/words.js";

const BARS = 5;
const NEW = "new";

export class Asking {
  #items = new Map(); // by key of the picture: { item, shows }
  #next = []; // pictures to label next
  live = null; // what knows whether an answer is still true

  constructor(session, teaching) {
    this.session = session;
    this.teaching = teaching;
    $("#ask-files").addEventListener("change", (event) => {
      this.ask([...event.target.files]);
      event.target.value = "";
    });
    takesDrops($("#ask"), (found) => attempt($("#ask-problem"), async () => this.#askDropped(await found)));
    for (const option of ["#more", "#say-unknown", "#unknown-share", "#say-why"]) {
      $(option).addEventListener(option === "#more" ? "toggle" : "change", () => this.live.changed());
    }
    $("#accept").addEventListener("click", () => this.#accept(Number($("#certainty").value)));
    $("#clear-answers").addEventListener("click", () => state.change({ asked: [] }, t("clearedAnswers")));
    $("#suggest").addEventListener("click", () => this.#suggest());
    $("#check").addEventListener("click", () => this.#check());
    $("#answers").addEventListener("keydown", (event) => this.#key(event));
  }

  ask(files, titles = files.map((file) => file.name)) {
    $("#ask-problem").textContent = "";
    if (!files.length) return;
    const asked = files.map((blob, i) => ({ picture: state.newPicture(blob, titles[i]), accepted: null }));
    state.change({ asked: [...state.current().asked, ...asked] }, t("asked", asked.length));
  }

  async #askDropped(found) {
    if (!found.length) throw new Error(t("noPictures"));
    this.ask(found.map((each) => each.file), found.map(titleOf));
  }

  /** What is asked for beyond the label; nothing while “More” is closed. */
  options() {
    if (!$("#more").open) return "";
    const unknown = $("#say-unknown").checked ? `&unknown=${$("#unknown-share").value}` : "";
    return unknown + ($("#say-why").checked ? "&why=true" : "");
  }

  render() {
    const { asked } = state.current();
    const known = new Set(asked.map((each) => each.picture.key));
    for (const key of this.#items.keys()) if (!known.has(key)) this.#items.delete(key);
    const [all, wanted] = [state.current().classes.map((group) => group.name).join("\n"), this.live.wanted];
    arrange($("#answers"), asked.map((each) => this.#item(each, all, wanted)).reverse());
    const answered = asked.filter((each) => each.picture.answer);
    for (const id of ["#with-answers", "#clear-answers"]) $(id).hidden = !answered.length;
    $("#waiting").textContent = asked.length && state.taught().length < 2 ? t("needTwo") : "";
  }

  #item(question, classes, wanted) {
    const { picture } = question;
    if (!this.#items.has(picture.key)) {
      const remove = button("×", () => this.#remove(picture), "remove");
      remove.ariaLabel = t("removeAnswer", picture.title);
      const item = make("li", "", thumbnail(picture), make("div"), remove);
      this.#items.set(picture.key, { item, shows: null });
    }
    const kept = this.#items.get(picture.key);
    const rank = this.#next.indexOf(picture) + 1;
    const shows = [picture.answer, labelOf(question), state.settled(question)?.key, classes, rank];
    if (!kept.shows || shows.some((each, i) => each !== kept.shows[i])) this.#fill(kept.item, question, rank);
    kept.shows = shows;
    kept.item.classList.toggle("stale", picture.answeredFor !== wanted);
    kept.item.classList.toggle("settled", Boolean(state.settled(question)));
    kept.item.classList.toggle("next", rank > 0);
    return kept.item;
  }

  #fill(item, question, rank) {
    const { picture } = question;
    const focused = item.contains(document.activeElement) && document.activeElement.dataset.to;
    const name = make("span", "file", picture.title);
    name.title = picture.title;
    const unknown = picture.answer?.unknown && !state.settled(question);
    const words = make("div", "", make("strong", unknown ? "unknown" : "", labelOf(question)), name);
    if (state.settled(question)) words.append(make("span", "said", t(question.accepted ? "accepted" : "youSaid")));
    if (picture.answer) words.append(...this.#details(question));
    if (rank) words.append(make("p", "label-next", t("labelNext", rank)));
    $("div", item).replaceWith(words);
    if (focused) $(`[data-to="${focused}"]`, item)?.focus();
  }

  #details(question) {
    const { picture } = question;
    const { answer } = picture;
    const order = state.current().classes.filter((group) => group.name in answer.probabilities);
    order.sort((a, b) => answer.probabilities[b.name] - answer.probabilities[a.name]);
    const bars = order.slice(0, BARS).map((group) => this.#bar(question, group));
    const others = classChoice(t("labelOf", picture.title), null, (key) => this.#say(question, key));
    for (const option of [...others.options]) if (order.slice(0, BARS).some((g) => g.key === option.value)) option.remove();
    others.options[0].textContent = t("somethingElse");
    others.append(new Option(t("aNewClass"), NEW));
    const parts = [make("div", "bars", ...bars), others];
    if (answer.warning) parts.push(make("p", "problem", t("unlike")));
    if (answer.for) parts.push(this.#reasons(answer));
    return parts;
  }

  /** A class and its probability, to be pressed if that is what the picture is. */
  #bar(question, group) {
    const share = `${(100 * question.picture.answer.probabilities[group.name]).toFixed(1)} %`;
    const place = state.current().classes.indexOf(group);
    const filled = make("span");
    filled.style.width = share.replace(" ", "");
    const names = [make("kbd", "", place < 9 ? `${place + 1}` : ""), make("span", "bar-name", group.name)];
    const press = button("", () => this.#say(question, group.key), "bar");
    press.append(...names, make("span", "track", filled), make("span", "bar-number", share));
    press.dataset.to = group.key;
    press.title = t("pressIfRight");
    press.ariaPressed = String(state.settled(question)?.key === group.key);
    return press;
  }

  /** Sets an answer right, which teaches; what was said already is taken back. */
  #say(question, key) {
    const { picture } = question;
    const asked = state.current().asked.map((each) => (each === question ? { picture, accepted: null } : each));
    if (state.settled(question)?.key === key) {
      state.change({ ...state.withoutPicture(picture), asked }, t("takenBack", picture.title));
      return;
    }
    const group = key === NEW ? this.teaching.addClass(undefined, false) : state.classAt(key);
    const why = this.teaching.full(group.key);
    if (why) return tell($("#ask-problem"), new Error(why), picture.title);
    $("#ask-problem").textContent = "";
    state.change({ ...state.withPictures([[picture, group.key]]), asked }, t("saidThis", picture.title, group.name));
  }

  /** The number of a class says that this picture is of it, and goes to the next one. */
  #key(event) {
    const group = state.current().classes[Number(event.key) - 1];
    const item = event.target.closest("#answers > li");
    if (!group || !item || event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = state.current().asked.find((each) => this.#items.get(each.picture.key)?.item === item);
    event.preventDefault();
    this.#say(at, group.key);
    const next = item.nextElementSibling ?? item;
    $(".bar, .remove", next)?.focus();
  }

  #remove(picture) {
    const { item } = this.#items.get(picture.key);
    const near = item.nextElementSibling ?? item.previousElementSibling;
    state.change(state.withoutQuestion(picture), t("removedAnswer", picture.title));
    (near ? $("button", near) : $("#ask-files")).focus();
  }

  /** Takes all answers of at least this probability for right. */
  #accept(least) {
    let count = 0;
    const asked = state.current().asked.map((each) => {
      const { answer } = each.picture;
      const sure = answer && !answer.unknown && !state.settled(each) && answer.probabilities[answer.label] >= least;
      const group = sure && state.classNamed(answer.label);
      if (group) count++;
      return group ? { ...each, accepted: group.key } : each;
    });
    if (count) state.change({ asked }, t("acceptedAll", count));
    $("#ask-status").textContent = t("acceptedAll", count);
  }

  /** Says what has been answered, once for all of them. */
  announce(questions) {
    const [first, ...more] = questions;
    if (!first) return;
    $("#ask-status").textContent = more.length
      ? t("answeredAll", questions.length)
      : t("answered", first.picture.title, labelOf(first));
  }

  #reasons(answer) {
    const taught = state.taught().flatMap((group) => group.pictures);
    const known = new Map(taught.map((picture) => [this.session.idOf(picture), picture]));
    const place = make("div", "why");
    for (const side of ["for", "against"]) {
      const shown = answer[side].filter((each) => known.has(each.picture));
      if (!shown.length) continue;
      const part = make("span", side, t(side));
      for (const { picture, influence } of shown) {
        const thumb = thumbnail(known.get(picture), t("influence", known.get(picture).title, influence.toPrecision(2)));
        thumb.title = thumb.getAttribute("aria-label");
        part.append(thumb);
      }
      place.append(part);
    }
    return place;
  }

  async #suggest() {
    await attempt($("#ask-problem"), async () => {
      await this.live.idle();
      const open = state.current().asked.filter((each) => !state.settled(each)).map((each) => each.picture);
      if (!open.some((picture) => picture.kept)) throw new Error(t("askFirst"));
      const found = await this.session.later(() => this.session.send("POST", "/suggest?count=20"));
      const ranked = found.pictures.map((id) => open.find((picture) => picture.kept === id));
      this.#next = ranked.filter(Boolean).slice(0, 3);
      this.render();
      $("#more-status").textContent = t("suggested", this.#next.map((picture) => picture.title).join(", "));
      if (this.#next.length) $(".bar", this.#items.get(this.#next[0].key).item).focus();
    });
  }

  async #check() {
    $("#more-status").textContent = t("checking");
    const found = await attempt($("#ask-problem"), () => this.session.later(() => this.session.send("POST", "/check")));
    this.clearDoubts();
    $("#more-status").textContent = "";
    if (!found) return;
    const named = [];
    for (const { picture: id, likelier } of found.suspicious) {
      const group = state.taught().find((each) => each.pictures.some((picture) => this.session.idOf(picture) === id));
      const picture = group?.pictures.find((each) => this.session.idOf(each) === id);
      if (!picture) continue;
      const item = this.teaching.itemOf(picture);
      item.classList.add("doubtful");
      item.append(classChoice(t("labelOf", picture.title), group, (key) => {
        this.clearDoubts();
        this.teaching.move(picture, key);
      }));
      named.push(t("doubt", picture.title, group.name, likelier));
    }
    $("#more-status").textContent = named.length ? t("doubts", named.join(", ")) : t("noDoubts");
  }

  clearDoubts() {
    for (const each of document.querySelectorAll(".doubtful")) {
      each.classList.remove("doubtful");
      $("select", each)?.remove();
    }
  }
}
