// Charts as SVG, one file each.
//
//   bars({rows: [{label: "3", value: 1.2e6, emphasis: "both"}], unit: "attention"});
//   timeline({first: [0, 50], last: [50, 100], values: [3, -1], onbrush: (a, b) => ...});
export {bars} from "viewer/chart_bars";
export {curves} from "viewer/chart_curves";
export {timeline} from "viewer/chart_time";
export {lines} from "viewer/chart_lines";
export {compare} from "viewer/chart_compare";
