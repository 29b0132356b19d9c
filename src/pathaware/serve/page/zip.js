// Zip files: written without compression, as pictures are compressed already; read with and without.

const [LOCAL, CENTRAL, END] = [0x04034b50, 0x02014b50, 0x06054b50];
const UTF8 = 0x0800;
const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

function crc32(bytes) {
  let sum = ~0;
  for (const byte of bytes) sum = TABLE[(sum ^ byte) & 255] ^ (sum >>> 8);
  return ~sum >>> 0;
}

/** Numbers as bytes, the lowest first: [value, count of bytes]. */
const packed = (...fields) =>
  Uint8Array.from(fields.flatMap(([value, count]) => Array.from({ length: count }, (_, i) => (value >>> (8 * i)) & 255)));

/** A zip file of these files, [{ name, blob }]. */
export async function zip(files) {
  const today = new Date();
  const date = ((today.getFullYear() - 1980) << 9) | ((today.getMonth() + 1) << 5) | today.getDate();
  const [contents, directory] = [[], []];
  let offset = 0;
  for (const { name, blob } of files) {
    const path = new TextEncoder().encode(name);
    const sum = crc32(new Uint8Array(await blob.arrayBuffer()));
    const about = [[20, 2], [UTF8, 2], [0, 4], [date, 2], [sum, 4], [blob.size, 4], [blob.size, 4], [path.length, 2]];
    const head = packed([LOCAL, 4], ...about, [0, 2]);
    contents.push(head, path, blob);
    directory.push(packed([CENTRAL, 4], [20, 2], ...about, [0, 12], [offset, 4]), path);
    offset += head.length + path.length + blob.size;
  }
  const size = new Blob(directory).size;
  const end = packed([END, 4], [0, 4], [files.length, 2], [files.length, 2], [size, 4], [offset, 4], [0, 2]);
  return new Blob([...contents, ...directory, end], { type: "application/zip" });
}

/** The files in a zip file, [{ name, blob }]; throws if it is none. */
export async function unzip(file) {
  const view = new DataView(await file.arrayBuffer());
  let end = view.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== END) end--;
  const found = [];
  let at = view.getUint32(end + 16, true); // out of range if there is no end
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (view.getUint32(at, true) !== CENTRAL) throw new RangeError("damaged");
    const [nameLength, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const name = new TextDecoder().decode(new Uint8Array(view.buffer, at + 46, nameLength));
    const local = view.getUint32(at + 42, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const content = file.slice(start, start + view.getUint32(at + 20, true));
    const deflated = view.getUint16(at + 10, true) === 8;
    if (!name.endsWith("/")) found.push({ name, blob: deflated ? await inflated(content) : content });
    at += 46 + nameLength + extra + comment;
  }
  return found;
}

const inflated = (blob) => new Response(blob.stream().pipeThrough(new DecompressionStream("deflate-raw"))).blob();

/** Names for files of any system, each once: [[folder, name]] as paths. */
export function paths(pairs) {
  const used = new Set();
  return pairs.map(([folder, name]) => {
    const [, stem, ending] = safe(name.split("/").at(-1)).match(/^(.+?)(\.[^.]*)?$/);
    for (let count = 1; ; count++) {
      const path = `${safe(folder)}/${stem}${count > 1 ? ` (${count})` : ""}${ending ?? ""}`;
      if (used.has(path.toLowerCase())) continue;
      used.add(path.toLowerCase());
      return path;
    }
  });
}

const safe = (name) => name.replace(/[\\/:*?"<>|\x00-\x1f]/g, "_").replace(/[. ]+$/, "") || "_";
