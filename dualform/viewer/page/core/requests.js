// Requests: their defaults and limits as the server declares them, and the one way to write each of them.
//
//     keyOf("predict", {input: {index: 12}})         // 'predict {"input":{"index":12},"step":null}'
//
// dualform/viewer/requests.py is the declaration; it comes with the page, as <script type="application/json" id="requests">.
const {defaults, limits} = JSON.parse(document.getElementById("requests").textContent);

export const MAX_MUTE_SETS = limits.mute_sets;
export const INPUTS_AT_ONCE = defaults.inputs.count;
export const SUSPECTS_AT_ONCE = defaults.suspects.count;
export const MAX_SUSPECTS = limits.suspects;

/** JSON with sorted keys and no spaces. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)
    .join(",")}}`;
}

/** The body of a request, with every entry. */
export const complete = (name, body) => ({...defaults[name], ...body});

/** A request in one line: what a report stores its answer by. */
export const keyOf = (name, body) => `${name} ${canonical(complete(name, body))}`;

/** The input a state is about, as requests name it; null when it is about none. */
export function inputOf(now) {
  if (now.page === "prompt") return now.prompt === null ? null : {prompt: now.prompt, token: now.token};
  if (typeof now.input === "number") return {index: now.input};
  const drawn = now.input?.slice("drawn:".length);
  return drawn ? {drawn} : null;
}
