// Requests to the server. Actions are sent one after the other. `window` marks the actions of this page in the log.
const name = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const session = { csrf: "", by: "", window: name };

export class Refused extends Error {
  constructor(message, answer) {
    super(message);
    this.answer = answer;
  }
}

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Error("No response: check whether the action was done when the server is back.");
  });
  if (answer.ok) return answer;
  const text = await answer.text();
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    // not JSON: the guard speaks in plain text
  }
  throw new Refused(found?.error ?? text ?? `the server responded with status ${answer.status}`, found ?? { status: answer.status });
}

const query = (values) => new URLSearchParams(values).toString();

export const getJson = async (path, values = {}, options = {}) =>
  (await ask(`${path}?${query(values)}`, options)).json();
export const getBytes = async (path, values = {}, options = {}) =>
  (await ask(`${path}?${query(values)}`, options)).arrayBuffer();

// Bytes in base64.
export function toBase64(bytes) {
  if (bytes.toBase64) return bytes.toBase64(); // many times faster, in newer browsers
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}
const fromBase64 = (text) =>
  Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Rows as the server reads them: a bit for each image up to the last of them.
export function pack(rows) {
  const bits = new Uint8Array(rows.reduce((length, row) => Math.max(length, (row >> 3) + 1), 0));
  for (const row of rows) bits[row >> 3] |= 1 << (row & 7);
  return toBase64(bits);
}

// Numbers as the server packs them: pairs of a difference and how often it is repeated.
export function unpack(text) {
  const pairs = new Int32Array(fromBase64(text).buffer), counts = pairs.filter((_, at) => at % 2);
  const numbers = new Int32Array(counts.reduce((n, count) => n + count, 0));
  let end = 0, last = 0;
  counts.forEach((count, at) => {
    const step = pairs[2 * at];
    while (count--) numbers[end++] = last += step;
  });
  return numbers;
}

export const introduce = (values) => Object.assign(session, values);

export const me = () => session.by;
export const isHere = (entry) => entry.window === session.window;
export const who = () => ({ by: session.by, window: session.window });

let last = Promise.resolve();
export function inTurn(work) {
  const next = last.then(work, work);
  last = next.catch(() => {});
  return next;
}

export async function post(action, base) {
  const body = JSON.stringify({ ...action, ...who(), base });
  const headers = { "content-type": "application/json", "x-shoal-csrf": session.csrf };
  return (await ask("/api/act", { method: "POST", headers, body })).json();
}
