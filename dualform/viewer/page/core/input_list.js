// The list of test inputs under the filters of the state, by pages: what the home page shows and the arrow keys go through.
import {ask} from "viewer/core/ask";
import {INPUTS_AT_ONCE} from "viewer/core/requests";

const MAX_SEARCHED_PAGES = 5; // for an input whose place is not known

let key = null;
let pages = new Map();

function filtersOf(now) {
  return {class: now.class, outcome: now.outcome, search: now.search};
}

/** Page `k` of the list: {total, inputs}. */
export function pageOf(now, k) {
  const filters = filtersOf(now);
  const wanted = JSON.stringify(filters);
  if (wanted !== key) [key, pages] = [wanted, new Map()];
  if (!pages.has(k)) {
    const kept = pages;
    const page = ask("inputs", {...filters, start: k * INPUTS_AT_ONCE});
    kept.set(k, page);
    page.catch(() => kept.delete(k));
  }
  return pages.get(k);
}

/** Forgets what was listed, because outcomes may be known by now. */
export function forgetListing() {
  key = null;
}

async function at(now, place) {
  const page = await pageOf(now, Math.floor(place / INPUTS_AT_ONCE));
  return page.inputs[place % INPUTS_AT_ONCE] ?? null;
}

async function placeOf(now) {
  if ((await at(now, now.start))?.index === now.input) return now.start;
  for (let k = 0; k < MAX_SEARCHED_PAGES; k += 1) {
    const {total, inputs} = await pageOf(now, k);
    const place = inputs.findIndex((input) => input.index === now.input);
    if (place >= 0) return k * INPUTS_AT_ONCE + place;
    if ((k + 1) * INPUTS_AT_ONCE >= total) break;
  }
  return null;
}

/** The input before (-1) or after (1) the state's in the list, with its place: {index, start}; null at the ends. */
export async function neighbour(now, direction) {
  const place = await placeOf(now);
  const next = place === null ? 0 : place + direction;
  if (next < 0) return null;
  const input = await at(now, next);
  return input && {index: input.index, start: next};
}
