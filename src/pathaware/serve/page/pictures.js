// Pictures as they are shown and sent, and small helpers for elements.

const THUMB = 112;
const SMALLER = 2048; // longest side of photographs that are too large to be sent as they are
const AT_ONCE = 32; // browsers refuse requests when thousands of them wait

export const $ = (selector, within = document) => within.querySelector(selector);

export function make(kind, className, ...content) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

export function button(text, press, className = "") {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", press);
  return made;
}

/** Makes these elements the children of `parent`, in this order; those that are there stay, and keep the focus. */
export function arrange(parent, wanted) {
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  for (const [i, element] of wanted.entries()) {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null);
  }
}

let loading = 0;
const waiting = [];

/** The file of a picture; those of a saved classifier come from the server when they are needed. */
export async function blobOf(picture) {
  if (!picture.blob) picture.blob = await (picture.loading ??= load(picture.address));
  return picture.blob;
}

async function load(address) {
  if (loading >= AT_ONCE) await new Promise((turn) => waiting.push(turn));
  loading++;
  try {
    return await (await fetch(address)).blob();
  } finally {
    loading--;
    waiting.shift()?.();
  }
}

/** Small, and drawn here: the page never needs the file's address. */
export function thumbnail(picture, title = picture.title) {
  const canvas = make("canvas");
  canvas.width = canvas.height = THUMB;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", title);
  paint(canvas, picture);
  return canvas;
}

async function paint(canvas, picture) {
  const brush = canvas.getContext("2d");
  try {
    const image = await createImageBitmap(await blobOf(picture));
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
    brush.fillText(picture.title.split(".").at(-1).slice(0, 5).toUpperCase(), THUMB / 2, THUMB / 2 + 8);
  }
}

/** A JPEG file of an image, of at most `most` pixels a side. */
export function jpeg(image, width, height, most) {
  const scale = Math.min(1, most / Math.max(width, height));
  const canvas = make("canvas");
  [canvas.width, canvas.height] = [width, height].map((side) => Math.max(1, side * scale));
  const brush = canvas.getContext("2d");
  brush.imageSmoothingQuality = "high";
  brush.fillStyle = "white"; // where it is transparent, as the server does
  brush.fillRect(0, 0, canvas.width, canvas.height);
  brush.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.95));
}

export async function scaledDown(blob) {
  const image = await createImageBitmap(blob).catch(() => null);
  if (!image) return null;
  const smaller = await jpeg(image, image.width, image.height, SMALLER);
  image.close();
  return smaller;
}
