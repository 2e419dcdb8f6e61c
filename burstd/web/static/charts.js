// Draws the charts of a page from its block of data, and again whenever the page has been fetched anew.
"use strict";
(() => {
  const places = [...document.querySelectorAll("[data-chart]")];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = ["--busy", "--good", "--warn", "--share", "--bad", "--still", "--link", "--text"];
  const dashes = [[], [8, 3], [2, 3], [10, 3, 2, 3], [14, 4], [6, 2, 2, 2], [4, 4], [1, 2]];
  const hour = 3600, day = 24 * hour;
  const ticks = [
    [365 * day, "{YYYY}", null, null, null, null, null, null, 1],
    [28 * day, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
    [day, "{D} {MMM}", "\n{YYYY}", null, null, null, null, null, 1],
    [hour, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
    [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", null, "\n{D} {MMM}", null, null, null, 1],
  ];
  // None below a minute: labels have no seconds.
  const steps = [...[1, 2, 5, 10, 15, 30].map((n) => n * 60), ...[1, 2, 3, 4, 6, 8, 12].map((n) => n * hour),
    ...[1, 2, 3, 4, 5, 7, 14, 30, 60, 90, 120, 180, 365, 730, 1825].map((n) => n * day)];
  const read = () => JSON.parse(document.getElementById("chart-data").textContent);
  let drawn = [];

  function stack(values) {
    const under = [];
    return values.map((line) => line.map((value, at) =>
      value === null ? null : (under[at] = (under[at] ?? 0) + value)));
  }

  // A value between two that are not known is a point: there is no line to it.
  const known = (value) => value !== null && value !== undefined;
  const alone = (values) => values.flatMap((value, at) =>
    known(value) && !known(values[at - 1]) && !known(values[at + 1]) ? [at] : []);

  function draw() {
    for (const chart of drawn) chart.destroy();
    const data = read();
    drawn = places.map((place) => {
      const chart = data.charts[Number(place.dataset.chart)];
      const values = chart.stacked ? stack(chart.values) : chart.values;
      const axis = {stroke: css("--soft"), grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1}};
      const series = chart.labels.map((label, n) => ({
        label, stroke: css(colours[n % colours.length]), width: 2, dash: dashes[n % dashes.length],
        points: {show: false, filter: () => alone(values[n]), fill: css(colours[n % colours.length])},
        value: (_, __, ___, at) => (at === null || chart.values[n][at] === null ? "" : String(chart.values[n][at])),
      }));
      const bands = chart.stacked ? series.slice(1).map((_, n) => ({series: [n + 2, n + 1],
        fill: css(colours[(n + 1) % colours.length]) + "33"})) : [];
      if (chart.stacked) series[0].fill = css(colours[0]) + "33";
      return new uPlot({
        width: place.clientWidth, height: 220, series: [{value: "{YYYY}-{MM}-{DD} {HH}:{mm}"}, ...series], bands,
        axes: [{...axis, values: ticks, incrs: steps}, {...axis, label: chart.unit, size: 64}], scales: {y: {range: (_, low, high) => [0, Math.max(1, high * 1.05)]}},
      }, [data.times, ...values], place);
    });
  }

  let waiting = 0, width = document.body.clientWidth;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (document.body.clientWidth !== width) draw();
      width = document.body.clientWidth;
    }, 100);
  });
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("htmx:after:swap", draw);
})();
