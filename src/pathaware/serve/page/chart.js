// Loss and accuracy after each inner step: two small charts, and a table with the same numbers.

import { t } from "/words.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [280, 150, 44, 12, 28, 24];
const PAUSE = 120;

export const percent = (part) => `${Math.round(100 * part)} %`;
export function loss(value) {
  if (value === null) return "–";
  return value > 0 && value < 0.0005 ? "<\u00a00.001" : value.toPrecision(2).replace(/e([+-])0*/, "e$1");
}

let shown = 0; // a later call stops an earlier one

/** Shows step after step; at once for those who do not want things to move. Nothing between two points. */
export async function showSteps(steps) {
  const turn = ++shown;
  document.querySelector("#steps").hidden = steps.length < 3;
  if (steps.length < 3) return; // the sentence above says as much
  const top = Math.max(...steps.map((s) => s.loss ?? 0)) || 1;
  const charts = [
    new Chart("loss", top, (s) => s.loss, steps.length, loss(top)),
    new Chart("accuracy", 1, (s) => s.accuracy, steps.length, "100 %"),
  ];
  document.querySelector("#charts").replaceChildren(...charts.map((chart) => chart.svg));
  const rows = ["#step-numbers", "#step-losses", "#step-accuracies"].map((id) => document.querySelector(id));
  for (const row of rows) while (row.children.length > 1) row.lastChild.remove();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  for (const step of steps) {
    for (const chart of charts) chart.add(step);
    const cells = [step.step, loss(step.loss), percent(step.accuracy)];
    cells.forEach((text, i) => rows[i].append(cell(i ? "td" : "th", text)));
    if (!still) await new Promise((done) => setTimeout(done, PAUSE));
    if (turn !== shown) return;
  }
}

function cell(kind, text) {
  const made = document.createElement(kind);
  if (kind === "th") made.scope = "col";
  made.textContent = text;
  return made;
}

class Chart {
  #points = [];

  constructor(kind, top, value, count, topText) {
    this.svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: `chart ${kind}` });
    this.x = (j) => LEFT + (j * (WIDTH - LEFT - RIGHT)) / Math.max(1, count - 1);
    this.y = (v) => HEIGHT - BOTTOM - (v / top) * (HEIGHT - TOP - BOTTOM);
    this.value = value;
    this.svg.append(text(LEFT, 15, t(kind), "title"));
    for (const [v, label] of [[0, kind === "loss" ? "0" : "0 %"], [top / 2, ""], [top, topText]]) {
      this.svg.append(element("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: this.y(v), y2: this.y(v), class: "grid" }));
      this.svg.append(text(LEFT - 6, this.y(v) + 4, label, "end"));
    }
    for (let j = 0; j < count; j++) this.svg.append(text(this.x(j), HEIGHT - 6, j, "middle"));
    this.area = element("path", { class: "area" });
    this.line = element("polyline", { class: "line" });
    this.svg.append(this.area, this.line);
  }

  add(step) {
    if (this.value(step) === null) return;
    const [x, y] = [this.x(step.step), this.y(this.value(step))];
    this.#points.push(`${x},${y}`);
    this.line.setAttribute("points", this.#points.join(" "));
    const floor = this.y(0);
    const start = this.#points[0].split(",")[0];
    this.area.setAttribute("d", `M${start},${floor} L${this.#points.join(" L")} L${x},${floor} Z`);
    this.svg.append(element("circle", { cx: x, cy: y, r: 4, class: "dot" }));
  }
}

function element(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function text(x, y, content, kind) {
  const made = element("text", { x, y, class: kind });
  made.textContent = content;
  return made;
}
