// Many images in few bytes: a bit for each image of the run instead of a number for each of a long list.
const MANY = 1000;

// Rows as the server reads them: a list, or the text of `n` bits.
export function packRows(rows, n) {
  if (rows.length <= MANY) return [...rows];
  const bytes = new Uint8Array(Math.ceil(n / 8));
  for (const row of rows) bytes[row >> 3] |= 1 << (row & 7);
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

function bytesOf(text) {
  const letters = atob(text), found = new Uint8Array(letters.length);
  for (let at = 0; at < found.length; at++) found[at] = letters.charCodeAt(at);
  return found;
}

export function unpackRows(packed) {
  if (typeof packed !== "string") return Uint32Array.from(packed);
  const bytes = bytesOf(packed), found = new Uint32Array(8 * bytes.length);
  let length = 0;
  for (let row = 0; row < found.length; row++) if ((bytes[row >> 3] >> (row & 7)) & 1) found[length++] = row;
  return found.slice(0, length);
}

// A number for each of `n` rows: one for all, or each in as many bytes as there are.
export function unpackNumbers(packed, n) {
  if (typeof packed === "number") return new Int32Array(n).fill(packed);
  if (typeof packed !== "string") return packed;
  const bytes = bytesOf(packed), Numbers = { 1: Int8Array, 2: Int16Array, 4: Int32Array }[bytes.length / n];
  return new Numbers(bytes.buffer);
}
