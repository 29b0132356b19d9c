// What people drop on the page: pictures, and folders of pictures.

import { t } from "/words.js";

// In a folder, files of other kinds (notes, Thumbs.db) are no pictures; those the server cannot read are named.
const PICTURE = /\.(jpe?g|jfif|png|bmp|gif|tiff?|webp|p[bgp]m|hei[cf]|avif|jxl|dng|cr2|nef|arw)$/i;

/** Calls `take` with the files that are dropped on a place, [{ file, folders }], the outermost folder first. */
export function takesDrops(place, take) {
  place.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation();
    showTarget(place);
  });
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) place.classList.remove("over");
  });
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    showTarget(null);
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    const entries = items.map((item) => item.webkitGetAsEntry() ?? item.getAsFile()); // gone after the event
    take(filesOf(entries));
  });
}

function showTarget(place) {
  for (const over of document.querySelectorAll(".over")) over.classList.remove("over");
  place?.classList.add("over");
}

/**
 * The files of each class as folders have them, by its name; those in no folder are under "".
 * A folder that holds several folders of pictures and no picture of its own is no class, but they are.
 */
export function byClass(found) {
  const inner = new Map(); // of each outermost folder, those in it; undefined if it has pictures of its own
  for (const { folders } of found) inner.set(folders[0], (inner.get(folders[0]) ?? new Set()).add(folders[1]));
  const classes = new Map();
  for (const each of found) {
    const within = inner.get(each.folders[0]);
    const name = each.folders[within.size > 1 && !within.has(undefined) ? 1 : 0] ?? "";
    if (!classes.has(name)) classes.set(name, []);
    classes.get(name).push(each);
  }
  return classes;
}

export const titleOf = ({ file, folders }) => [...folders, file.name].join("/");

async function filesOf(entries, folders = []) {
  const found = [];
  for (const entry of entries) {
    if (entry instanceof File) found.push({ file: entry, folders });
    else if (folders.length && entry.name.startsWith(".")) continue;
    else if (entry.isDirectory) found.push(...(await filesOf(await inside(entry), [...folders, entry.name])));
    else if (!folders.length || PICTURE.test(entry.name)) found.push({ file: await opened(entry), folders });
  }
  return found;
}

async function inside(folder) {
  const [reader, all] = [folder.createReader(), []];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // a hundred at most
    if (!some.length) return all.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    all.push(...some);
  }
}

function opened(entry) {
  const failed = () => new Error(t("unreadable", entry.fullPath.slice(1)));
  return new Promise((done, refuse) => entry.file(done, () => refuse(failed())));
}
