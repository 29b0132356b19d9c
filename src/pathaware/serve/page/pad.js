// A sheet of paper to draw on with mouse, finger, pen or keys.

import { t } from "/words.js";

const INK = 18;
const STEP = 14;
const SENT = 112;

export class Pad {
  #canvas;
  #strokes = [];
  #pen = null; // where the keyboard's pen is; null while nobody uses it
  #down = false;

  constructor(canvas) {
    this.#canvas = canvas;
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("blur", () => {
      this.#pen = null;
      this.#draw();
    });
    this.#draw();
  }

  get empty() {
    return this.#strokes.length === 0;
  }

  clear() {
    this.#strokes = [];
    this.#down = false;
    this.#draw();
  }

  /** The drawing as a PNG: in the middle and of usual size, wherever and however large it was drawn. */
  picture() {
    const points = this.#strokes.flat();
    const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
    const [left, top] = [Math.min(...xs), Math.min(...ys)];
    const [width, height] = [Math.max(...xs) - left, Math.max(...ys) - top];
    const scale = Math.min((0.62 * SENT) / Math.max(width, height, 1), 1.5);
    const place = ([x, y]) => [
      SENT / 2 + (x - left - width / 2) * scale,
      SENT / 2 + (y - top - height / 2) * scale,
    ];
    const sheet = document.createElement("canvas");
    sheet.width = sheet.height = SENT;
    paint(sheet, this.#strokes.map((stroke) => stroke.map(place)), (INK * SENT) / this.#canvas.width);
    return new Promise((done) => sheet.toBlob(done, "image/png"));
  }

  #press(event) {
    if (event.button !== 0) return;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#pen = null;
    this.#strokes.push([this.#at(event)]);
    this.#draw();
  }

  #move(event) {
    if (!this.#canvas.hasPointerCapture(event.pointerId)) return;
    this.#strokes.at(-1).push(this.#at(event));
    this.#draw();
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key !== " " && !moves[event.key]) return;
    event.preventDefault();
    const side = this.#canvas.width;
    this.#pen ??= [side / 2, side / 2];
    if (event.key === " ") {
      this.#down = !this.#down;
      if (this.#down) this.#strokes.push([this.#pen]);
    } else {
      this.#pen = this.#pen.map((v, i) => Math.min(side, Math.max(0, v + STEP * moves[event.key][i])));
      if (this.#down) this.#strokes.at(-1).push(this.#pen);
    }
    this.#draw();
  }

  #at(event) {
    const box = this.#canvas.getBoundingClientRect();
    const scale = this.#canvas.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  #draw() {
    paint(this.#canvas, this.#strokes, INK);
    const brush = this.#canvas.getContext("2d");
    if (this.empty && !this.#pen) {
      brush.fillStyle = "#70758a";
      brush.font = "22px sans-serif";
      brush.textAlign = "center";
      brush.fillText(t("drawHere"), this.#canvas.width / 2, this.#canvas.height / 2 + 7);
    }
    if (!this.#pen) return;
    brush.strokeStyle = "#3d5afe";
    brush.lineWidth = this.#down ? 6 : 2;
    brush.beginPath();
    brush.arc(...this.#pen, INK / 2 + 2, 0, 7);
    brush.stroke();
  }
}

function paint(canvas, strokes, ink) {
  const brush = canvas.getContext("2d");
  brush.fillStyle = "white";
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.strokeStyle = "black";
  brush.lineWidth = ink;
  brush.lineCap = brush.lineJoin = "round";
  for (const stroke of strokes) {
    brush.beginPath();
    brush.moveTo(...stroke[0]);
    for (const point of stroke) brush.lineTo(...point);
    brush.stroke();
  }
}
