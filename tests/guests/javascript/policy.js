// A whole policy in JavaScript: the worker of each role that has the fewest requests. Names are the WIT's in camel case;
// a variant is `{ tag, val }`; an error that is thrown in `configure` refuses the settings.

const UNIFIED = 0;
const PREFILL = 1;
const DECODE = 2;
const DRAINING = 8;

const USE_DEFAULT = { tag: "use-default" };

// The row with the fewest requests among those that fit, or -1.
function least(workers, fits) {
  let best = -1;
  let fewest = 0;
  for (let row = 0; row < workers.role.length; row++) {
    if (!fits(row) || workers.abilities[row] & DRAINING) continue;
    const requests = workers.running[row] + workers.waiting[row];
    if (best < 0 || requests < fewest) [best, fewest] = [row, requests];
  }
  return best;
}

function routed(placement) {
  return { tag: "route", val: { placement, reason: "fewest requests", hints: [] } };
}

export const hooks = {
  describe() {
    return {
      name: "fewest-requests-js",
      version: "1.0.0",
      about: "The worker of each role that has the fewest requests.",
      settingsSchema: JSON.stringify({ type: "object", properties: {}, additionalProperties: false }),
    };
  },

  configure(settings) {
    const [key] = Object.keys(JSON.parse(settings));
    if (key !== undefined) throw `setting \`${key}\` is unknown; this policy takes no settings`;
  },

  route({ workers }) {
    const prefill = least(workers, (row) => workers.role[row] === PREFILL);
    if (prefill >= 0) {
      const group = workers.group[prefill];
      const decode = least(workers, (row) => workers.role[row] === DECODE && workers.group[row] === group);
      if (decode >= 0) {
        const pair = { prefill, decode: { tag: "now", val: decode }, transfer: "pull", kvRecomputeThresholdTokens: 64 };
        return routed({ tag: "disaggregated", val: pair });
      }
    }
    const alone = least(workers, (row) => workers.role[row] === UNIFIED);
    return alone >= 0 ? routed({ tag: "unified", val: alone }) : USE_DEFAULT;
  },

  bindDecode() {
    return undefined;
  },

  retain() {
    return USE_DEFAULT;
  },

  heartbeat() {
    return USE_DEFAULT;
  },
};
