"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const dashes = [[], [8, 3], [2, 3], [10, 3, 2, 3], [14, 4], [6, 2, 2, 2, 2, 2], [4, 4]];
  const shapes = [[0, 0], [4, 0.125], [3, 0], [4, 0], [3, 0.5], [5, 0], [6, 0]]; // corners (0: a circle), turn
  const waitTicks = [[1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"],
    [86400, "1 d"], [604800, "1 week"], [2592000, "30 d"], [31536000, "1 year"]];
  const font = "12px system-ui, sans-serif";
  let charts = [];

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (chain) => css(`--c${chain % 10}`);
  const dash = (chain) => dashes[chain % dashes.length];
  function marker(ctx, chain, x, y, size) {
    const [corners, turn] = shapes[chain % shapes.length];
    ctx.beginPath();
    if (!corners) ctx.arc(x, y, size * 0.9, 0, 2 * Math.PI);
    for (let n = 0; n < corners; n++) {
      const angle = 2 * Math.PI * (n / corners + turn);
      ctx.lineTo(x + size * 1.2 * Math.sin(angle), y - size * 1.2 * Math.cos(angle));
    }
    ctx.closePath();
    ctx.fillStyle = data.chains[chain].baseline ? css("--paper") : colour(chain);
    ctx.strokeStyle = colour(chain);
    ctx.fill();
    ctx.stroke();
  }

  function line(ctx, points, stroke, width, pattern) {
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.lineWidth = width;
    ctx.setLineDash(pattern);
    ctx.beginPath();
    for (const [x, y] of points) ctx.lineTo(x, y);
    ctx.stroke();
    ctx.restore();
  }

  function sample(canvas) {
    const chain = Number(canvas.dataset.chain), scale = uPlot.pxRatio, ctx = canvas.getContext("2d");
    canvas.width = 36 * scale;
    canvas.height = 16 * scale;
    ctx.scale(scale, scale);
    line(ctx, [[1, 8], [35, 8]], colour(chain), 2, dash(chain));
    ctx.lineWidth = 1.8;
    marker(ctx, chain, 18, 8, 5);
  }

  const axis = (more) => ({
    stroke: css("--soft"), font, labelFont: font, grid: {stroke: css("--rule"), width: 1},
    ticks: {stroke: css("--rule"), width: 1, size: 4}, ...more,
  });

  function draw(place, options, values) {
    charts.push(new uPlot({width: Math.max(200, place.clientWidth), ...options}, values, place));
  }

  // Where a label covers neither points nor other labels, as near to its point as it can be.
  function placeLabel(taken, box, x, y, width) {
    let best = null;
    for (const away of [10, 22, 36, 52, 70, 90]) {
      for (const [left, middle] of [[x + away, y], [x - away - width, y], [x - width / 2, y - away - 6],
        [x - width / 2, y + away + 6], [x + away, y - away], [x - away - width, y - away],
        [x + away, y + away], [x - away - width, y + away]]) {
        const own = [left, middle - 8, left + width, middle + 8];
        const over = (other) => Math.max(0, Math.min(own[2], other[2]) - Math.max(own[0], other[0])) *
          Math.max(0, Math.min(own[3], other[3]) - Math.max(own[1], other[1]));
        const cost = taken.reduce((sum, other) => sum + over(other), 0) + 4 * (width * 16 - over(box)) + 3 * away;
        if (!best || cost < best.cost) best = {cost, own, left, middle};
      }
    }
    taken.push(best.own);
    return best;
  }

  function scatter(place, index) {
    const {points, against, top} = data.scatters[index];
    const order = points.map((_, chain) => chain).sort((a, b) => points[a].x - points[b].x || points[b].y - points[a].y);
    const tip = place.appendChild(document.createElement("div"));
    tip.className = "tip";
    tip.hidden = true;
    const spots = (u, inCanvas) => points.map((p) => [u.valToPos(p.x, "x", inCanvas), u.valToPos(p.y, "y", inCanvas)]);
    const paint = (u) => {
      const ctx = u.ctx, scale = uPlot.pxRatio;
      ctx.save();
      ctx.scale(scale, scale);
      const at = spots(u, true).map(([x, y]) => [x / scale, y / scale]);
      const [left, above, width, height] = [u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height].map((n) => n / scale);
      const steps = [];
      const front = order.filter((chain) => points[chain].front);
      for (const chain of front) {
        if (steps.length) steps.push([at[chain][0], steps.at(-1)[1]]);
        steps.push(at[chain]);
      }
      const taken = at.map(([x, y]) => [x - 9, y - 9, x + 9, y + 9]);
      if (front.length > 1) {
        steps.push([left + width, steps.at(-1)[1]]);
        line(ctx, steps, css("--soft"), 1.5, [5, 4]);
        steps.slice(1).forEach(([x, y], n) => {
          const [px, py] = steps[n];
          taken.push([Math.min(x, px) - 1, Math.min(y, py) - 1, Math.max(x, px) + 1, Math.max(y, py) + 1]);
        });
      }
      ctx.font = `600 ${font}`;
      ctx.textBaseline = "middle";
      ctx.textAlign = "left";
      ctx.lineJoin = "round";
      for (const chain of order) {
        const [x, y] = at[chain], name = data.chains[chain].name;
        const text = (name.length > 30 ? `${name.slice(0, 19)}\u2026${name.slice(-10)}` : name) + points[chain].far;
        const wide = ctx.measureText(text).width;
        const label = placeLabel(taken, [left, above - 12, left + width + 8, above + height], x, y, wide);
        const near = [Math.min(Math.max(x, label.left), label.left + wide), label.middle];
        if (Math.hypot(near[0] - x, near[1] - y) > 24) line(ctx, [[x, y], near], css("--soft"), 0.75, []);
        ctx.lineWidth = 1.8;
        marker(ctx, chain, x, y, 6);
        ctx.lineWidth = 3;
        ctx.strokeStyle = css("--paper");
        ctx.strokeText(text, label.left, label.middle);
        ctx.fillStyle = colour(chain);
        ctx.fillText(text, label.left, label.middle);
      }
      ctx.restore();
    };
    const follow = (u) => {
      const {left, top: above} = u.cursor;
      const far = spots(u, false).map(([x, y]) => Math.hypot(x - left, y - above));
      const chain = far.indexOf(Math.min(...far));
      tip.hidden = !(left >= 0 && far[chain] < 24);
      tip.textContent = points[chain].tip;
      tip.style.left = `${Math.max(0, Math.min(left + 20, place.clientWidth - 240))}px`;
      tip.style.top = `${above + 30}px`;
    };
    draw(place, {
      height: 380, padding: [14, 24, 0, 0], legend: {show: false},
      cursor: {x: false, y: false, drag: {x: false, y: false}, points: {show: false}},
      scales: {
        x: {time: false, range: [0, Math.max(...points.map((p) => p.x)) * 1.06 || 1]},
        y: {range: [0, top * 1.06]},
      },
      axes: [axis({label: against, labelSize: 20}), axis({size: 60})],
      series: [{}, {paths: () => null, points: {show: false}}],
      hooks: {draw: [paint], setCursor: [follow]},
    }, [order.map((chain) => points[chain].x), order.map((chain) => points[chain].y)]);
  }

  function timeline(place, index, part) {
    const {course} = data.chains[index], {window_end, site_size, site_unit} = data.timeline;
    const keys = {nodes: ["cloud_nodes", "cloud_busy"], pending: ["pending_jobs"], site: ["site_busy"]}[part];
    const names = {cloud_nodes: "cloud nodes", cloud_busy: "with a job", pending_jobs: "pending", site_busy: site_unit};
    const courses = data.chains.map((chain) => chain.course).filter((one) => one.time.length);
    const ends = courses.map(({time}) => time.at(-1) + (time.length > 1 ? time[1] - time[0] : 1));
    const [start, end] = [Math.min(...courses.map(({time}) => time[0])), Math.max(...ends)];
    const most = Math.max(3, part === "site" ? site_size : 0, ...courses.flatMap((one) => one[keys[0]]));
    const last = course.time.at(-1) + (course.time.length > 1 ? course.time[1] - course.time[0] : 1);
    const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
    const date = uPlot.fmtDate(end - start > 4 * 86400 ? "{D} {MMM}" : "{D} {MMM} {HH}:{mm}");
    const powers = [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].filter((n) => n <= most);
    const marks = (u) => {
      const x = u.valToPos(window_end, "x", true), {left, top, width, height} = u.bbox;
      if (window_end < end) line(u.ctx, [[x, top], [x, top + height]], css("--ink"), uPlot.pxRatio, [2, 6]);
      if (part !== "site" || !site_size) return;
      const y = u.valToPos(site_size, "y", true);
      line(u.ctx, [[left, y], [left + width, y]], css("--ink"), uPlot.pxRatio, []);
    };
    draw(place, {
      height: 150, padding: [8, 24, 0, 0], tzDate: utc,
      cursor: {drag: {x: false, y: false}, y: false, sync: {key: "timeline"}},
      scales: {
        x: {range: [start, end]},
        y: part === "pending" ? {distr: 4, asinh: 1, range: [0, most]} : {range: [0, most * 1.05]},
      },
      axes: [
        axis({grid: {show: false}, space: 90, size: 30, values: (u, all) => all.map((at) => date(utc(at)))}),
        axis({
          size: 52, space: 22, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6],
          ...(part === "pending" ? {splits: () => powers, values: (u, all) => all.map((n) => n.toLocaleString("en"))} : {}),
        }),
      ],
      series: [{label: "UTC", value: "{D} {MMM} {YYYY} {HH}:{mm}"}, ...keys.map((key, layer) => ({
        label: names[key], stroke: colour(index), width: layer ? 0 : 1, fill: colour(index) + (layer ? "d0" : "55"),
        paths: uPlot.paths.stepped({align: 1}), points: {show: false},
      }))],
      hooks: {draw: [marks]},
    }, [[...course.time, last], ...keys.map((key) => [...course[key], course[key].at(-1)])]);
  }

  function spell(seconds) {
    if (seconds == null) return "never";
    const [size, unit] = [[1, "s"], [60, "min"], [3600, "h"], [86400, "d"]][[100, 7200, 259200].filter((n) => seconds >= n).length];
    return `${(seconds / size).toFixed(size === 1 ? 0 : 1)} ${unit}`;
  }

  function waits(place) {
    const shown = data.chains.map((chain, index) => [chain, index]).filter(([chain]) => chain.wait_s.length);
    const longest = Math.max(60, ...shown.flatMap(([chain]) => chain.wait_s));
    draw(place, {
      height: 420, padding: [10, 24, 0, 0], cursor: {drag: {x: false, y: false}, x: false},
      scales: {
        x: {time: false, ori: 1, range: [0, 1.01]},
        y: {ori: 0, distr: 3, range: [1, longest * 1.02]},
      },
      axes: [
        axis({side: 3, size: 52, splits: () => [0, 0.2, 0.4, 0.6, 0.8, 1], values: (u, all) => all.map((n) => `${Math.round(n * 100)} %`)}),
        axis({
          side: 2, label: "wait (logarithmic, from 1 s)", labelSize: 20, filter: (u, all) => all,
          splits: () => waitTicks.map(([at]) => at).filter((at) => at <= longest),
          values: (u, all) => all.map((at) => new Map(waitTicks).get(at)),
        }),
      ],
      series: [{label: "share of jobs", value: (u, share) => share == null ? "" : `${(share * 100).toFixed(1)} %`},
        ...shown.map(([chain, index]) => ({
          label: chain.name, stroke: colour(index), width: 2, dash: dash(index), points: {show: false},
          value: (u, wait, series, at) => at == null ? "" : spell(chain.wait_s[at]),
        }))],
    }, [data.shares, ...shown.map(([chain]) => chain.wait_s.map((wait) => wait == null ? null : Math.max(1, wait)))]);
  }

  const kinds = {scatter, timeline, waits};
  function render() {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    document.querySelectorAll(".sample").forEach(sample);
    for (const place of document.querySelectorAll(".plot")) {
      place.replaceChildren();
      kinds[place.dataset.kind](place, Number(place.dataset.index), place.dataset.part);
    }
  }

  root.classList.add("js");
  render();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || root.classList.contains("print")) return;
    width = innerWidth;
    render();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  for (const [event, on] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => {
      root.classList.toggle("print", on);
      render();
    });
  }
})();
