// The page: its parts, and what is around them. Whatever people type is shown as text, never as HTML.

import { Asking } from "/ask.js";
import { Recorder, Watcher } from "/camera.js";
import { loss, percent, showSteps } from "/chart.js";
import { Live } from "/live.js";
import { Keeping } from "/keep.js";
import { Pad } from "/pad.js";
import { $, arrange, button } from "/pictures.js";
import { attempt, tell } from "/problems.js";
import { call, Session } from "/session.js";
import * as state from "/state.js";
import { Storage } from "/storage.js";
import { Teaching } from "/teach.js";
import { choose, t, writeTexts } from "/words.js";

const NARROW = matchMedia("(max-width: 939px)");

writeTexts($("#language"));
const model = await attempt($("#teach-problem"), () => call("GET", "/api/model"));
if (model) await begin();
document.body.dataset.ready = "yes";

async function begin() {
  const session = new Session(model.saved > 0, model.limits);
  const storage = new Storage([model.name, model.method, model.saved].join(), () => ($("#kept-here").textContent = t("keptNot")));
  const recorder = new Recorder(null);
  const teaching = new Teaching(session, model, openDrawing, (key) => recorder.open(key));
  const asking = new Asking(session, teaching);
  recorder.teaching = teaching;
  let first = null; // the signature of what is nothing new to anybody
  const keeping = new Keeping(session, model, () => {
    first = state.signature();
    render();
  });

  const isUnsaved = () => state.signature() !== first && state.taught().length > 0;

  function render() {
    teaching.render();
    asking.render();
    keeping.render();
    for (const [id, said] of [["#undo", state.undoable()], ["#redo", state.redoable()]]) {
      $(id).disabled = !said;
      $(id).title = said ?? "";
    }
    storage.write(isUnsaved());
  }

  const live = new Live(session, {
    render,
    learned: (found) => {
      $("#server").replaceChildren();
      showLearned(found);
    },
    answered: (questions) => asking.announce(questions),
    options: () => asking.options(),
    refused(picture, error) {
      const group = state.classWith(picture);
      tell(group ? teaching.problemOf(group.key) : $("#ask-problem"), error, picture.title);
      state.enter({ ...state.withoutPicture(picture), ...(group ? {} : state.withoutQuestion(picture)) });
    },
    failed(error) {
      const words = document.createElement("p");
      words.textContent = error.message;
      $("#server").replaceChildren(words, button(t("tryAgain"), () => live.changed()));
    },
  });
  asking.live = live;
  new Watcher(session, teaching);

  // ---- drawings

  const [askPad, classPad] = [new Pad($("#ask-pad")), new Pad($("#class-pad"))];
  let [drawingFor, drawn] = [null, 0];

  function openDrawing(key) {
    drawingFor = key;
    $("#drawing-title").textContent = t("drawFor", state.classAt(key).name);
    $("#drawing-status").textContent = "";
    classPad.clear();
    $("#drawing").showModal();
  }

  $("#drawing-add").addEventListener("click", async () => {
    if (classPad.empty) return ($("#drawing-status").textContent = t("drawFirst"));
    const added = await teaching.teach(drawingFor, [await classPad.picture()], [t("drawn", ++drawn)]);
    $("#drawing-status").textContent = added ? t("drawingAdded") : teaching.problemOf(drawingFor).textContent;
    if (added) classPad.clear();
  });
  $("#drawing-clear").addEventListener("click", () => classPad.clear());
  $("#drawing-done").addEventListener("click", () => $("#drawing").close());
  $("#ask-drawn").addEventListener("click", async () => {
    if (askPad.empty) return ($("#ask-problem").textContent = t("drawFirst"));
    asking.ask([await askPad.picture()], [t("drawn", ++drawn)]);
    askPad.clear();
  });
  $("#ask-clear").addEventListener("click", () => askPad.clear());

  // ---- examples

  $("#examples").addEventListener("click", () =>
    attempt($("#teach-problem"), async () => {
      const found = await call("GET", "/api/examples");
      const pictures = await Promise.all(found.map(async (e) => (await fetch(e.picture)).blob()));
      for (const label of new Set(found.map((e) => e.label))) {
        let group = state.classNamed(label) ?? state.current().classes.find((each) => !each.pictures.length);
        group ??= teaching.addClass(label, false);
        if (!group.pictures.length) state.change(state.changed(group.key, { name: label }), t("renamed", group.name, label));
        const chosen = [...found.keys()].filter((i) => found[i].label === label && !found[i].asked);
        await teaching.teach(group.key, chosen.map((i) => pictures[i]), chosen.map((_, k) => t("example", k + 1, label)));
      }
      const asked = [...found.keys()].filter((i) => found[i].asked);
      $("#ask-examples").hidden = false;
      $("#ask-examples").onclick = () =>
        asking.ask(asked.map((i) => pictures[i]), asked.map((_, k) => t("question", k + 1)));
    }),
  );

  // ---- back and forth

  function step(there, said, id) {
    if (!state[`${there}able`]()) return;
    $("#teach-status").textContent = t(said, state[there]());
    if ($(id).disabled) $("#add-class").focus();
  }

  $("#undo").addEventListener("click", () => step("undo", "undone", "#undo"));
  $("#redo").addEventListener("click", () => step("redo", "redone", "#redo"));
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || /^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    const key = event.key.toLowerCase();
    if (!["y", "z"].includes(key)) return;
    event.preventDefault();
    if (key === "y" || event.shiftKey) step("redo", "redone", "#redo");
    else step("undo", "undone", "#undo");
  });

  // ---- what is kept

  $("#forget").addEventListener("click", () =>
    attempt($("#keep-problem"), async () => {
      await storage.forget();
      first = state.signature();
      $("#keep-status").textContent = t("forgotten");
    }),
  );
  $("#afresh").addEventListener("click", async () => {
    state.change({ ...(await initial()), asked: [] }, t("startedAfresh"));
    $("#afresh").hidden = true;
  });

  async function initial() {
    if (!model.saved) {
      const names = [1, 2].map((number) => t("className", number));
      return { classes: names.map((name) => ({ key: state.newKey(), name, pictures: [] })), asked: [] };
    }
    const groups = new Map();
    for (const [i, { label, picture }] of (await call("GET", "/api/saved")).entries()) {
      if (!groups.has(label)) groups.set(label, { key: `saved ${label}`, name: label, pictures: [] });
      const { pictures } = groups.get(label);
      pictures.push({ key: `saved ${i}`, title: t("savedPicture", pictures.length + 1), saved: i, address: picture });
    }
    return { classes: [...groups.values()], asked: [] };
  }

  // ---- the page around them

  // A picture that misses every drop zone must not replace the page.
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  addEventListener("beforeunload", (event) => isUnsaved() && event.preventDefault());
  addEventListener("pagehide", () => session.forget());
  addEventListener("pageshow", (event) => event.persisted && location.reload());
  $("#language").addEventListener("change", (event) => {
    choose(event.target.value);
    first = state.signature(); // nothing is lost by writing the page in another language
    location.reload();
  });

  const [kind, side] = [t(model.channels === 1 ? "grey" : "colour"), model.size];
  const about = model.saved ? t("aboutSaved", model.name, model.measured) : t("about", model.name);
  $("#about").textContent = `${about} ${t("sees", kind, side)}`;
  $("#examples").hidden = $("#ask-drawing").hidden = !model.ink;
  $("#more-unknown").hidden = !model.calibrated;
  const place = () => arrange($("main"), model.saved && NARROW.matches ? [$(".aside"), $("#teach")] : [$("#teach"), $(".aside")]);
  NARROW.addEventListener("change", place);
  place();

  await attempt($("#teach-problem"), async () => {
    const kept = await storage.begin().catch(() => storage.failed());
    await session.begin();
    const fresh = await initial();
    const found = kept && (kept.unsaved || kept.asked.length || kept.classes.some((group) => group.pictures.length));
    state.enter(found ? kept : fresh);
    if (!kept?.unsaved || !found) first = state.signature();
    $("#afresh").hidden = !found;
    if (found) $("#teach-status").textContent = t("broughtBack");
  });
}

function showLearned(found) {
  const empty = state.current().classes.filter((group) => !group.pictures.length).map((group) => group.name);
  if (!found) {
    showSteps([]);
    $("#learned").textContent = t("needTwo");
    $("#learn-problem").textContent = "";
    return;
  }
  showSteps(found.steps);
  const [begun, ended] = [found.steps[0], found.steps.at(-1)];
  $("#learned").textContent = t(
    "learned",
    found.classes.length,
    found.steps.length - 1,
    [loss(begun.loss), loss(ended.loss)],
    [percent(begun.accuracy), percent(ended.accuracy)],
  );
  const warnings = found.warning ? [t("unlike")] : [];
  if (empty.length) warnings.push(t("leftEmpty", empty.join(", ")));
  $("#learn-problem").textContent = warnings.join("\n");
}
