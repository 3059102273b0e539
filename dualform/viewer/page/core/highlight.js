// Hovering over a class, slot or step lights it up everywhere on the page, and dims nothing.
//
//   link(bar, {class: 3});                         // hovering over `bar` lights all that is linked to class 3
//   const stop = onLinked((values) => ...);        // {class: 3}, or null when nothing is lit
//
// Only the class "lit" is toggled, by one pair of listeners on the document. Elements with the attribute data-listens
// get an event "linked" instead of a callback, so that a chart nobody keeps is not kept here.
const NAMES = ["class", "slot", "id", "step", "token"];
const values = new WeakMap();
const callbacks = new Set();
let lit = [],
  now = null,
  started = false;

/** Ties an element (HTML or SVG) to what it shows; values that are null are left out. */
export function link(element, what) {
  start();
  const present = Object.fromEntries(
    NAMES.filter((name) => (what?.[name] ?? null) !== null).map((name) => [name, what[name]]),
  );
  for (const name of NAMES) {
    if (name in present) element.setAttribute(`data-link-${name}`, present[name]);
    else element.removeAttribute(`data-link-${name}`);
  }
  element.toggleAttribute("data-linked", Object.keys(present).length > 0);
  values.set(element, present);
  return element;
}

/** Calls back with what is lit, or null; returns a function that ends this. */
export function onLinked(callback) {
  start();
  callbacks.add(callback);
  return () => callbacks.delete(callback);
}

/** Lights everything that shares a value with `what`; null puts the light out. Charts call it for the nearest line. */
export function light(what) {
  if (same(what, now)) return;
  for (const element of lit) element.classList.remove("lit");
  now = what;
  lit = what ? [...document.querySelectorAll(selector(what))] : [];
  for (const element of lit) element.classList.add("lit");
  for (const callback of callbacks) callback(now);
  for (const element of document.querySelectorAll("[data-listens]"))
    element.dispatchEvent(new CustomEvent("linked", {detail: now}));
}

function selector(what) {
  const parts = NAMES.filter((name) => name in what).map(
    (name) => `[data-link-${name}="${CSS.escape(String(what[name]))}"]`,
  );
  return parts.join(",") || "[data-link-nothing]";
}

function same(a, b) {
  return a === b || (a && b && NAMES.every((name) => a[name] === b[name]));
}

function start() {
  if (started) return;
  started = true;
  const over = (event) => {
    const element = event.target.closest?.("[data-linked]");
    if (element) light(values.get(element) ?? null);
    else if (!event.target.closest?.("[data-lights]")) light(null); // charts with data-lights put it out themselves
  };
  document.addEventListener("pointerover", over, {passive: true});
  document.addEventListener("focusin", over);
  document.addEventListener("focusout", () => light(null));
  document.documentElement.addEventListener("pointerleave", () => light(null));
}
