// The state of the page, which is its address: a link restores what a person saw.
//
//     state.set({page: "spotlight", input: 12});            // a new entry of the browser's history
//     state.set({step: 250}, {replace: true});              // the same entry, for what changes by dragging
//     state.subscribe((now, before) => ...);
//
// `input` is the number of a test input or "drawn:STROKES"; `mute` is the list of sets that the request `mute` takes.
// `start` is the place of the input in the list of inputs, under the filters `outcome`, `class` and `search`; `top` says how
// many suspects are listed.

const DEFAULTS = {
  page: "home",
  input: null,
  layer: null,
  per: null,
  mute: [],
  step: null,
  prompt: null,
  token: null,
  outcome: null,
  class: null,
  search: "",
  start: 0,
  summed: true,
  top: null,
};

const NUMBERS = new Set(["step", "token", "class", "start", "top"]);
const RANGES = new Set(["steps", "positions"]);
const WRITE_MS = 300; // browsers refuse an address that changes with every movement of a pen

// Numbers stay bare; a text that looks like one is quoted, so that both come back as they were.
function valueText(value) {
  if (typeof value === "number") return String(value);
  return encodeURIComponent(/^-?[\d.]+$|^'/.test(value) ? `'${value}'` : value);
}

function valueOf(text) {
  const value = decodeURIComponent(text);
  if (/^-?\d+(\.\d+)?$/.test(value)) return Number(value);
  return /^'.*'$/.test(value) ? value.slice(1, -1) : value;
}

function entryText([name, values]) {
  const list = RANGES.has(name) ? values.join("-") : values.map(valueText).join(",");
  return `${encodeURIComponent(name)}:${list}`;
}

function entryOf(text) {
  const [name, list] = text.split(":");
  const key = decodeURIComponent(name);
  return [key, RANGES.has(key) ? list.split("-").map(Number) : list.split(",").map(valueOf)];
}

/** label:3,5;task:mnist+label:3;steps:100-200 of the sets that are muted. */
export function muteText(sets) {
  return sets.map((set) => Object.entries(set).map(entryText).join("+")).join(";");
}

/** The sets of muteText; a text that is not of its form gives none, as a link may be cut short on its way. */
export function muteOf(text) {
  try {
    return text
      .split(";")
      .filter(Boolean)
      .map((part) => Object.fromEntries(part.split("+").map(entryOf)));
  } catch {
    return [];
  }
}

function parse(name, text) {
  if (name === "mute") return muteOf(text);
  const value = decodeURIComponent(text);
  if (name === "summed") return value !== "no";
  if (NUMBERS.has(name)) return /^\d+$/.test(value) ? Number(value) : DEFAULTS[name];
  if (name === "input") return /^\d+$/.test(value) ? Number(value) : value.startsWith("drawn:") ? value : null;
  return value;
}

function write(name, value) {
  if (name === "mute") return muteText(value);
  if (name === "summed") return value ? "yes" : "no";
  return encodeURIComponent(value).replaceAll("%3A", ":");
}

function fromHash(hash) {
  const [page, query = ""] = hash.replace(/^#/, "").split("?");
  const now = {...DEFAULTS, page: page || DEFAULTS.page};
  for (const part of query.split("&")) {
    const at = part.indexOf("=");
    const name = part.slice(0, at);
    if (at > 0 && name in DEFAULTS && name !== "page")
      now[name] = safely(() => parse(name, part.slice(at + 1)), DEFAULTS[name]);
  }
  return now;
}

function safely(compute, otherwise) {
  try {
    return compute();
  } catch {
    return otherwise;
  }
}

/** The address of a state, without what is as it always is. */
export function toHash(now) {
  const changed = Object.keys(DEFAULTS).filter((name) => name !== "page" && !isDefault(name, now[name]));
  const query = changed.map((name) => `${name}=${write(name, now[name])}`).join("&");
  return `#${now.page}${query ? `?${query}` : ""}`;
}

function isDefault(name, value) {
  return name === "mute" ? !value?.length : value === undefined || value === DEFAULTS[name];
}

let current = fromHash(location.hash);
let pending = null;
const listeners = new Set();

// In a frame without an address of its own the history is closed; the page then works without one.
function record(method) {
  clearTimeout(pending);
  pending = null;
  safely(() => history[method](null, "", toHash(current)));
}

function notify(before) {
  for (const listener of [...listeners]) listener(current, before);
}

function set(changes, {replace = false} = {}) {
  const next = {...current, ...changes};
  if (toHash(next) === toHash(current)) return;
  const before = current;
  if (!replace && pending !== null) record("replaceState");
  current = next;
  if (!replace) record("pushState");
  else pending ??= setTimeout(() => record("replaceState"), WRITE_MS);
  notify(before);
}

function readAddress() {
  const next = fromHash(location.hash);
  clearTimeout(pending);
  pending = null;
  if (toHash(next) === toHash(current)) return;
  const before = current;
  current = next;
  notify(before);
}

addEventListener("popstate", readAddress);
addEventListener("hashchange", readAddress);
addEventListener("pagehide", () => pending !== null && record("replaceState"));

export const state = {
  get: () => current,
  set,
  subscribe(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};
