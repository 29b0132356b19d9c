// The page: classes with pictures, adapting, questions. Whatever people type is shown as text, never as HTML.

import { ApiError, call, Lost, Session } from "/api.js";
import { loss, percent, showSteps } from "/chart.js";
import { byClass, takesDrops, titleOf } from "/drops.js";
import { Pad } from "/pad.js";

const $ = (selector, within = document) => within.querySelector(selector);
const THUMB = 112;
const BARS = 5;
const SMALLER = 2048; // longest side of photographs that are too large to be sent as they are
const AT_ONCE = 32; // browsers refuse requests when thousands of them wait

const session = new Session();
const classes = []; // { name, card, pictures: [{ id, blob, title, item }] }
const known = new Map(); // every picture that was ever taught, by id, for undo
const asked = new Map(); // answers whose pictures the server keeps: { item, blob, title } by id
const answers = []; // rows of the table that can be saved: { title, answer }
let model = null;
let made = 0;
let adapted = false; // at least once, so that a change makes it out of date

// ---- what went wrong, in words and in place

async function attempt(place, doing) {
  place.textContent = "";
  try {
    return await doing();
  } catch (error) {
    tell(place, error);
    return undefined;
  }
}

function tell(place, error, title = "") {
  if (error instanceof Lost) return lost(error);
  const sentence = title ? `${title}: ${error.message}` : error.message;
  place.textContent = place.textContent ? `${place.textContent}\n${sentence}` : sentence;
}

function lost(error) {
  const words = document.createElement("p");
  words.textContent = `The server has forgotten what you taught: ${error.message}.`;
  const again = button("Send the pictures again", teachAgain);
  $("#lost").replaceChildren(words, again);
  again.focus();
}

async function teachAgain() {
  $("#lost").replaceChildren();
  await attempt($("#teach-problem"), () =>
    session.later(async () => {
      await session.begin();
      for (const group of classes) {
        for (const picture of group.pictures) {
          picture.id = (await upload(group, picture.blob)).picture;
          known.set(picture.id, picture);
        }
      }
      changed();
    }),
  );
}

// ---- 1 Teach

function addClass(name) {
  const card = $("#class-card").content.firstElementChild.cloneNode(true);
  const group = { name: name ?? freeName(), card, pictures: [] };
  const files = $("input[type=file]", card);
  $(".name", card).addEventListener("change", () => rename(group));
  $(".remove-class", card).addEventListener("click", () => removeClass(group));
  $(".draw", card).hidden = !model.ink;
  $(".draw", card).addEventListener("click", () => openDrawing(group));
  files.addEventListener("change", () => {
    teach(group, [...files.files]);
    files.value = "";
  });
  takesDrops(card, (found) => attempt($(".problem", card), async () => teachDropped(await found, group)));
  classes.push(group);
  $("#classes").append(card);
  showClass(group);
  return group;
}

function freeName() {
  let name;
  do name = `Class ${++made}`;
  while (classes.some((group) => group.name === name));
  return name;
}

/** Whether a class is as the page made it, so that it can take the name of a folder. */
const untouched = (group) => !group.pictures.length && /^Class \d+$/.test(group.name);

/** Teaches what was dropped on a class, or beside all of them. Folders are classes, unless one is for this class. */
async function teachDropped(found, group) {
  if (!found.length) throw new Error("There are no pictures in it.");
  const folders = byClass(found);
  if (!group && folders.has("")) throw new Error("Drop pictures on a class, or folders, one for each class.");
  for (const [folder, members] of folders) {
    const name = folder.normalize("NFC").trim().slice(0, model.limits.label_characters);
    const same = classes.find((each) => each.name === name);
    let to = !name || folders.size === 1 ? group : undefined;
    to ??= same ?? classes.find(untouched) ?? addClass(name);
    if (name && !same && untouched(to)) to.name = name;
    await teach(to, members.map((each) => each.file), members.map(titleOf));
  }
}

function showClass(group) {
  const { card, name, pictures } = group;
  card.setAttribute("aria-label", `Class ${name}`);
  $(".name", card).value = name;
  $(".count", card).textContent = pictures.length === 1 ? "1 picture" : `${pictures.length} pictures`;
  $("input[type=file]", card).setAttribute("aria-label", `Add pictures to ${name}`);
  $(".draw", card).setAttribute("aria-label", `Draw a picture for ${name}`);
  $(".remove-class", card).setAttribute("aria-label", `Remove the class ${name}`);
}

async function rename(group) {
  const to = $(".name", group.card).value.normalize("NFC").trim();
  await attempt($(".problem", group.card), async () => {
    if (!to) throw new Error("A class needs a name.");
    if (classes.some((other) => other !== group && other.name === to)) {
      throw new Error(`Another class is called “${to}” already.`);
    }
    await session.later(async () => {
      const path = `/labels/${encodeURIComponent(group.name)}?to=${encodeURIComponent(to)}`;
      if (group.pictures.length) await session.send("POST", path);
      if (group.pictures.length && group.name !== to) $("#undo").hidden = false;
      group.name = to;
    });
  });
  showClass(group);
}

async function removeClass(group) {
  await attempt($(".problem", group.card), async () => {
    await session.later(async () => {
      const path = `/labels/${encodeURIComponent(group.name)}`;
      if (group.pictures.length) await session.send("DELETE", path);
    });
    classes.splice(classes.indexOf(group), 1);
    group.card.remove();
    $("#add-class").focus();
    if (group.pictures.length) changed();
  });
}

async function teach(group, files, titles = files.map((file) => file.name)) {
  const problem = $(".problem", group.card);
  problem.textContent = "";
  let added = 0;
  for (const [i, blob] of files.entries()) {
    try {
      const { picture, label } = await session.later(() => upload(group, blob));
      group.name = label;
      const kept = { id: picture, blob, title: titles[i] };
      known.set(picture, kept);
      group.pictures.push(kept);
      await showPicture(group, kept);
      added++;
    } catch (error) {
      tell(problem, error, titles[i]);
      if (error instanceof Lost || error.status === 0) break;
      if (error.status !== 409) continue;
      const others = files.length - i - 1; // there is no room for them either
      if (others) problem.textContent += `\nLeft out: ${others} more. “pathaware learn” takes any number.`;
      break;
    }
  }
  showClass(group);
  if (!added) return;
  $("#teach-status").textContent = `${added === 1 ? "1 picture" : `${added} pictures`} added to ${group.name}.`;
  changed();
}

function upload(group, blob) {
  return send(`/pictures?label=${encodeURIComponent(group.name)}`, blob);
}

/** Sends a picture, scaled down first if it is too large and the browser can read it. */
async function send(path, blob) {
  try {
    fits(blob);
    return await session.send("POST", path, blob);
  } catch (error) {
    const smaller = error.status === 413 ? await scaledDown(blob) : null;
    if (!smaller) throw error;
    return session.send("POST", path, smaller);
  }
}

function fits(blob) {
  const most = model.limits.upload_bytes;
  if (blob.size <= most) return;
  throw new ApiError(413, `the file has more than the ${most.toLocaleString("en")} bytes allowed; scale it down`);
}

async function scaledDown(blob) {
  const image = await createImageBitmap(blob).catch(() => null);
  if (!image) return null;
  const scale = Math.min(1, SMALLER / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width * scale, image.height * scale].map((side) => Math.max(1, side));
  const brush = canvas.getContext("2d");
  brush.imageSmoothingQuality = "high";
  brush.fillStyle = "white"; // where it is transparent, as the server does
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.95));
}

async function showPicture(group, picture) {
  const item = document.createElement("li");
  const remove = button("×", () => removePicture(group, picture, item), "remove");
  remove.setAttribute("aria-label", `Remove ${picture.title} from ${group.name}`);
  item.append(await thumbnail(picture.blob, picture.title), remove);
  picture.item = item;
  $(".thumbs", group.card).append(item);
  showClass(group);
}

async function removePicture(group, picture, item) {
  await attempt($(".problem", group.card), async () => {
    await session.later(() => session.send("DELETE", `/pictures/${picture.id}`));
    group.pictures.splice(group.pictures.indexOf(picture), 1);
    item.remove();
    showClass(group);
    $("input[type=file]", group.card).focus();
    changed();
  });
}

/** Small, and drawn here: the page never needs the file's address. */
async function thumbnail(blob, title) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = THUMB;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", title);
  const brush = canvas.getContext("2d");
  try {
    const image = await createImageBitmap(blob);
    const scale = Math.min(THUMB / image.width, THUMB / image.height);
    const [w, h] = [image.width * scale, image.height * scale];
    brush.imageSmoothingQuality = "high";
    brush.drawImage(image, (THUMB - w) / 2, (THUMB - h) / 2, w, h);
    image.close();
  } catch {
    // The server reads formats that browsers do not show.
    brush.font = "600 22px sans-serif";
    brush.textAlign = "center";
    brush.fillStyle = "gray";
    brush.fillText(title.split(".").at(-1).slice(0, 5).toUpperCase(), THUMB / 2, THUMB / 2 + 8);
  }
  return canvas;
}

/** The last change of pictures or names, taken back on the server and then here. */
async function undo() {
  await attempt($("#teach-problem"), async () => {
    const { pictures, undoable } = await session.later(() => session.send("POST", "/undo"));
    const labels = [...new Set(pictures.map((each) => each.label))];
    const emptied = classes.filter((g) => g.pictures.length && !labels.includes(g.name));
    for (const label of labels) {
      if (classes.some((group) => group.name === label)) continue;
      const renamed = emptied.shift();
      if (renamed) renamed.name = label;
      else addClass(label);
    }
    for (const group of classes) {
      group.pictures = [];
      $(".thumbs", group.card).replaceChildren();
    }
    for (const { picture, label } of pictures) {
      const group = classes.find((each) => each.name === label);
      group.pictures.push(known.get(picture));
      await showPicture(group, known.get(picture));
    }
    for (const group of classes) showClass(group);
    $("#undo").hidden = !undoable;
    $("#teach-status").textContent = "Undone.";
    changed();
    $("#undo").hidden = !undoable;
    if (!undoable) $("#add-class").focus();
  });
}

function changed() {
  $("#undo").hidden = false;
  if (adapted) $("#adapt-status").textContent = "The pictures have changed: adapt again.";
}

// ---- drawing for a class

let drawingFor = null;
let drawn = 0;

function openDrawing(group) {
  drawingFor = group;
  $("#drawing-title").textContent = `Draw a picture for ${group.name}`;
  $("#drawing-status").textContent = "";
  classPad.clear();
  $("#drawing").showModal();
}

async function addDrawing() {
  if (classPad.empty) {
    $("#drawing-status").textContent = "Draw something first.";
    return;
  }
  const before = drawingFor.pictures.length;
  const picture = await classPad.picture();
  await teach(drawingFor, [picture], [`drawing ${++drawn}`]);
  const problem = $(".problem", drawingFor.card).textContent;
  $("#drawing-status").textContent =
    problem || (drawingFor.pictures.length > before ? "Added. Draw another, or press Done." : "");
  if (!problem) classPad.clear();
}

// ---- examples

async function tryExamples() {
  await attempt($("#teach-problem"), async () => {
    const found = await call("GET", "/api/examples");
    const pictures = await Promise.all(found.map(async (e) => (await fetch(e.picture)).blob()));
    for (const label of new Set(found.map((e) => e.label))) {
      const group = classes.find((c) => c.name === label) ?? classes.find((c) => !c.pictures.length) ?? addClass(label);
      if (!group.pictures.length) group.name = label;
      const chosen = found.map((e, i) => i).filter((i) => found[i].label === label && !found[i].asked);
      await teach(group, chosen.map((i) => pictures[i]), chosen.map((i, k) => `example ${k + 1} of ${label}`));
    }
    const asked = found.map((e, i) => i).filter((i) => found[i].asked);
    const ask = $("#ask-examples");
    ask.hidden = false;
    ask.onclick = () => question(asked.map((i) => pictures[i]), asked.map((i, k) => `question ${k + 1}`));
  });
}

/** Adapts to the pictures of a classifier that `pathaware learn` saved, which the session has, and shows them. */
async function showSaved(pictures) {
  const adapting = adapt();
  const groups = new Map();
  const saved = await call("GET", "/api/saved"); // in the same order
  for (let start = 0; start < saved.length; start += AT_ONCE) {
    const some = saved.slice(start, start + AT_ONCE);
    const blobs = await Promise.all(some.map(async (each) => (await fetch(each.picture)).blob()));
    for (const [i, { picture, label }] of pictures.slice(start, start + AT_ONCE).entries()) {
      if (!groups.has(label)) groups.set(label, addClass(label));
      const group = groups.get(label);
      if (!classes.includes(group)) continue; // removed while others were loading
      const kept = { id: picture, blob: blobs[i], title: `saved picture ${group.pictures.length + 1}` };
      known.set(picture, kept);
      group.pictures.push(kept);
      await showPicture(group, kept);
    }
  }
  await adapting;
}

// ---- 2 Adapt

async function adapt() {
  const press = $("#adapt-button");
  if (press.ariaBusy === "true") return;
  press.ariaBusy = "true";
  $("#adapt-status").textContent = "Adapting …";
  const found = await attempt($("#adapt-problem"), () => session.later(() => session.send("POST", "/adapt")));
  if (found) {
    adapted = true;
    await showSteps(found.steps);
    const [first, last] = [found.steps[0], found.steps.at(-1)];
    const steps = found.steps.length - 1;
    $("#adapt-status").textContent =
      `${found.classes.length} classes${steps > 1 ? ` in ${steps} steps` : ""}: ` +
      `loss ${loss(first.loss)} → ${loss(last.loss)}, ` +
      `accuracy ${percent(first.accuracy)} → ${percent(last.accuracy)} ` +
      "on the pictures you gave; on others it is usually lower.";
    const empty = classes.filter((group) => !group.pictures.length).map((group) => group.name);
    const warnings = found.warning ? [`${found.warning}.`] : [];
    if (empty.length) warnings.push(`Left out, as without pictures: ${empty.join(", ")}.`);
    $("#adapt-problem").textContent = warnings.join("\n");
  } else {
    $("#adapt-status").textContent = "";
  }
  press.ariaBusy = "false";
}

// ---- 3 Ask

async function question(files, titles = files.map((file) => file.name)) {
  const problem = $("#ask-problem");
  problem.textContent = "";
  for (const [i, blob] of files.entries()) {
    try {
      const answer = await session.later(() => send(`/classify${wanted()}`, blob));
      $("#answers").prepend(await shownAnswer(answer, blob, titles[i]));
      answers.push({ title: titles[i], answer });
      $("#save").hidden = false;
    } catch (error) {
      tell(problem, error, titles[i]);
      if (error instanceof Lost || [0, 409].includes(error.status)) break; // the others would fare alike
    }
  }
}

const given = (answer) => (answer.unknown ? "none of these" : answer.label);

/** Saves all answers as the file that `pathaware predict --out answers.csv` would write. */
function saveAnswers() {
  const names = [...new Set(answers.flatMap(({ answer }) => Object.keys(answer.probabilities)))].sort();
  const first = ["picture", "label", "probability"];
  const rows = answers.map(({ title, answer: { probabilities, ...answer } }) => {
    const numbers = [probabilities[answer.label], ...names.map((name) => probabilities[name])];
    return [title, given(answer), ...numbers.map((number) => number?.toFixed(6) ?? "")];
  });
  const header = [...first, ...names.map((name) => (first.includes(name) ? `${name} (class)` : name))];
  const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
  const text = [header, ...rows].map((row) => `${row.map(quoted).join(",")}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })); // the mark is for spreadsheets
  link.download = "answers.csv";
  link.click();
  URL.revokeObjectURL(link.href);
}

/** What is asked for beyond the label; nothing while “More” is closed. */
function wanted() {
  if (!$("#more").open) return "";
  const parts = ["keep=true"];
  if ($("#say-unknown").checked) parts.push(`unknown=${$("#unknown-share").value}`);
  if ($("#say-why").checked) parts.push("why=true");
  return `?${parts.join("&")}`;
}

async function shownAnswer(answer, blob, title) {
  const item = document.createElement("li");
  const label = document.createElement("strong");
  label.textContent = given(answer);
  if (answer.unknown) label.className = "unknown";
  const bars = document.createElement("div");
  bars.className = "bars";
  const order = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  for (const [name, probability] of order.slice(0, BARS)) bars.append(...bar(name, probability));
  const name = document.createElement("span");
  name.className = "file";
  name.textContent = name.title = title;
  const words = document.createElement("div");
  words.append(label, name, bars);
  if (answer.warning) {
    const warning = document.createElement("p");
    warning.className = "problem";
    warning.textContent = `${answer.warning}.`;
    words.append(warning);
  }
  if (answer.for) words.append(await reasons(answer));
  item.append(await thumbnail(blob, title), words);
  if (answer.picture) asked.set(answer.picture, { item, blob, title });
  return item;
}

async function reasons(answer) {
  const place = document.createElement("div");
  place.className = "why";
  for (const side of ["for", "against"]) {
    const shown = answer[side].filter((each) => known.has(each.picture));
    if (!shown.length) continue;
    const part = document.createElement("span");
    part.className = side;
    part.append(side);
    for (const { picture, influence } of shown) {
      const { blob, title } = known.get(picture);
      const thumb = await thumbnail(blob, `${title}, influence ${influence.toPrecision(2)}`);
      thumb.title = thumb.getAttribute("aria-label");
      part.append(thumb);
    }
    place.append(part);
  }
  return place;
}

// ---- more about answers

async function suggestNext() {
  await attempt($("#ask-problem"), async () => {
    if (!asked.size) throw new Error("Ask about some pictures first, with “More about answers” open.");
    const found = await session.later(() => session.send("POST", "/suggest?count=3"));
    for (const each of document.querySelectorAll(".label-next")) each.remove();
    for (const each of document.querySelectorAll(".next")) each.classList.remove("next");
    const shown = found.pictures.filter((id) => asked.has(id));
    for (const [i, id] of shown.entries()) markNext(i + 1, asked.get(id));
    $("#more-status").textContent = `Labels of these would help most: ${shown.map((id) => asked.get(id).title).join(", ")}.`;
    $("select", asked.get(shown[0]).item)?.focus();
  });
}

function markNext(rank, { item, blob, title }) {
  const place = document.createElement("div");
  place.className = "label-next";
  const choice = classChoice(`Label of ${title}`, null, async (group) => {
    await teach(group, [blob], [title]);
    place.remove();
    item.classList.remove("next");
  });
  place.append(`Label next (${rank})`, choice);
  item.classList.add("next");
  $("div", item).append(place);
}

function classChoice(label, without, choose) {
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", label);
  choice.append(new Option("this is …", ""));
  const offered = classes.filter((group) => group !== without);
  for (const [i, group] of offered.entries()) choice.append(new Option(group.name, i));
  choice.addEventListener("change", () => choice.value && choose(offered[Number(choice.value)]));
  return choice;
}

async function checkLabels() {
  $("#more-status").textContent = "Checking …";
  const found = await attempt($("#ask-problem"), () => session.later(() => session.send("POST", "/check")));
  for (const each of document.querySelectorAll(".doubtful")) {
    each.classList.remove("doubtful");
    $("select", each)?.remove();
  }
  if (!found) {
    $("#more-status").textContent = "";
    return;
  }
  const named = [];
  for (const { picture, likelier } of found.suspicious) {
    const group = classes.find((each) => each.pictures.some((other) => other.id === picture));
    const shown = known.get(picture);
    if (!group || !shown) continue;
    shown.item.classList.add("doubtful");
    shown.item.append(classChoice(`Label of ${shown.title}`, group, (to) => correct(group, to, shown)));
    named.push(`${shown.title} of ${group.name} (rather ${likelier}?)`);
  }
  $("#more-status").textContent = named.length
    ? `Labels that may be wrong: ${named.join(", ")}.`
    : "No label looks wrong.";
}

async function correct(from, to, picture) {
  await attempt($(".problem", from.card), async () => {
    const path = `/pictures/${picture.id}?label=${encodeURIComponent(to.name)}`;
    await session.later(() => session.send("POST", path));
    from.pictures.splice(from.pictures.indexOf(picture), 1);
    picture.item.remove();
    to.pictures.push(picture);
    await showPicture(to, picture);
    showClass(from);
    changed();
    $(".name", to.card).focus();
  });
}

function measured(found) {
  return found ? `Measured on pictures that it had not learned, ${found.right} of ${found.of} labels were right. ` : "";
}

function bar(name, probability) {
  const [label, track, filled, number] = ["span", "span", "span", "span"].map((n) => document.createElement(n));
  label.textContent = name;
  label.className = "bar-name";
  track.className = "track";
  filled.style.width = `${100 * probability}%`;
  track.append(filled);
  number.textContent = `${(100 * probability).toFixed(1)} %`;
  number.className = "bar-number";
  return [label, track, number];
}

async function askDrawn() {
  if (askPad.empty) {
    $("#ask-problem").textContent = "Draw something first.";
    return;
  }
  await question([await askPad.picture()], [`drawing ${++drawn}`]);
  askPad.clear();
}

// ---- small helpers

function button(text, press, kind = "") {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  made.textContent = text;
  made.addEventListener("click", press);
  return made;
}

// A picture that misses every drop zone must not replace the page.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
addEventListener("pagehide", () => session.forget());
addEventListener("pageshow", (event) => event.persisted && location.reload());

const askPad = new Pad($("#ask-pad"));
const classPad = new Pad($("#class-pad"));
$("#add-class").addEventListener("click", () => $(".name", addClass().card).select());
$("#examples").addEventListener("click", tryExamples);
$("#adapt-button").addEventListener("click", adapt);
$("#undo").addEventListener("click", undo);
$("#suggest").addEventListener("click", suggestNext);
$("#check").addEventListener("click", checkLabels);
$("#save").addEventListener("click", saveAnswers);
$("#ask-files").addEventListener("change", (event) => {
  question([...event.target.files]);
  event.target.value = "";
});
$("#ask-drawn").addEventListener("click", askDrawn);
$("#ask-clear").addEventListener("click", () => askPad.clear());
$("#drawing-add").addEventListener("click", addDrawing);
$("#drawing-clear").addEventListener("click", () => classPad.clear());
$("#drawing-done").addEventListener("click", () => $("#drawing").close());
takesDrops($("#teach"), (found) => attempt($("#teach-problem"), async () => teachDropped(await found)));
takesDrops($("#ask"), (found) =>
  attempt($("#ask-problem"), async () => {
    const dropped = await found;
    if (!dropped.length) throw new Error("There are no pictures in it.");
    await question(dropped.map((each) => each.file), dropped.map(titleOf));
  }),
);

await attempt($("#teach-problem"), async () => {
  model = await call("GET", "/api/model");
  const saved = await session.begin(Boolean(model.saved));
  const [kind, side] = [model.channels === 1 ? "grey" : "colour", model.size];
  $("#about").textContent =
    (model.saved ? `${model.name} has learned the classes below; you can change them. ${measured(model.measured)}` :
      `The model ${model.name} (${model.method}) has learned how to learn from a few pictures. `) +
    `It sees pictures in ${kind}, ${side}×${side}.`;
  $("#examples").hidden = $("#ask-drawing").hidden = !model.ink;
  $("#more-unknown").hidden = !model.calibrated;
  if (model.saved) await showSaved(saved);
  else [addClass(), addClass()];
});
document.body.dataset.ready = "yes";
