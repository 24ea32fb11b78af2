"use strict";
(() => {
  const tip = document.getElementById("tip");
  const text = (value) => {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size < 1e-12) return "0";
    if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toPrecision(2);
    if (size >= 100 || Number.isInteger(value)) return value.toLocaleString("en", {maximumFractionDigits: 0});
    return size >= 1 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
  };
  const show = (event, rows) => {
    tip.replaceChildren(...rows.map(([colour, words]) => {
      const line = document.createElement("div");
      if (colour !== null) {
        const dot = document.createElement("i");
        dot.className = "c" + colour;
        line.append(dot);
      }
      line.append(words);
      return line;
    }));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16 + box.width > innerWidth;
    tip.style.left = (right ? event.clientX - box.width - 12 : event.clientX + 16) + "px";
    tip.style.top = Math.max(8, event.clientY - box.height - 10) + "px";
  };
  const hide = () => { tip.hidden = true; };
  const place = (svg, event) => {
    const point = new DOMPoint(event.clientX, event.clientY);
    return point.matrixTransform(svg.getScreenCTM().inverse());
  };

  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    const data = JSON.parse(svg.dataset.chart);
    if (!data.xs.length) continue;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", data.top);
    cursor.setAttribute("y2", data.bottom);
    cursor.style.display = "none";
    svg.append(cursor);
    const first = data.xs[0], span = data.end - first;
    svg.addEventListener("pointermove", (event) => {
      const x = place(svg, event).x;
      if (x < data.left - 4 || x > data.right + 4) return;
      const wanted = first + (x - data.left) / (data.right - data.left) * span;
      let low = 0, high = data.xs.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (data.xs[middle] <= wanted) low = middle; else high = middle - 1;
      }
      const at = data.left + (data.xs[low] - first) / span * (data.right - data.left);
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.style.display = "";
      const value = (v) => v === null ? "-" : data.percent ? (v * 100).toFixed(1) + "%" : text(v);
      show(event, [[null, data.label + ": " + text(data.xs[low])],
        ...data.series.map((one) => [one.c, one.name + "  " + value(one.values[low])])]);
    });
    svg.addEventListener("pointerleave", () => { cursor.style.display = "none"; hide(); });
  }

  for (const svg of document.querySelectorAll("svg[data-heat]")) {
    const data = JSON.parse(svg.dataset.heat);
    const [left, top, width, height] = svg.dataset.box.split(",").map(Number);
    const image = new Image();
    let pixels = null;
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = image.width;
      canvas.height = image.height;
      const context = canvas.getContext("2d", {willReadFrequently: true});
      context.drawImage(image, 0, 0);
      pixels = context.getImageData(0, 0, image.width, image.height).data;
    };
    image.src = svg.querySelector("image").getAttribute("href");
    svg.addEventListener("pointermove", (event) => {
      const point = place(svg, event);
      const column = Math.floor((point.x - left) / width * image.width);
      const row = Math.floor((point.y - top) / height * image.height);
      if (!pixels || column < 0 || row < 0 || column >= image.width || row >= image.height) return hide();
      const opacity = pixels[4 * (row * image.width + column) + 3];
      const level = opacity ? Math.round((opacity - data.faintest) / (255 - data.faintest) * 255) : 0;
      const share = level / 255;
      const value = data.log ? data.low * (data.high / data.low) ** share : data.low + share * (data.high - data.low);
      const from = data.first + column * data.bin;
      const slots = data.bin > 1 ? "slots " + text(from) + " to " + text(from + data.bin - 1) : "slot " + text(from);
      const more = data.group > 1 ? " and " + (data.group - 1) + " after it" : "";
      show(event, [[null, data.rows[row] + more + ", " + slots],
        [null, data.what + ": " + (level || !data.log ? text(Number(value.toPrecision(3))) : "none")]]);
    });
    svg.addEventListener("pointerleave", hide);
  }

  const PAGE = 25;
  for (const box of document.querySelectorAll(".table.live")) {
    const rows = JSON.parse(box.querySelector("script").textContent);
    const heads = [...box.querySelectorAll("th")];
    const body = box.querySelector("tbody");
    const filter = box.querySelector("input");
    const count = box.querySelector(".count");
    const pager = box.querySelector(".pager");
    const words = rows.map((row) => row.filter((cell) => cell !== null).join(" ").toLowerCase());
    let order = rows.map((_, at) => at), kept = order, page = 0, column = -1, sign = 1;
    const button = (label, step) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = label;
      made.addEventListener("click", () => { page += step; draw(); });
      return made;
    };
    const back = button("Previous", -1), next = button("Next", 1), where = document.createElement("span");
    pager.append(back, where, next);
    const draw = () => {
      const pages = Math.max(1, Math.ceil(kept.length / PAGE));
      page = Math.min(Math.max(page, 0), pages - 1);
      body.replaceChildren(...kept.slice(page * PAGE, (page + 1) * PAGE).map((at) => {
        const line = document.createElement("tr");
        line.append(...rows[at].map((cell, position) => {
          const made = document.createElement("td");
          const numeric = heads[position].classList.contains("num");
          if (numeric) made.className = "num";
          if (position === 0) made.title = cell;
          made.textContent = cell === null ? "" : numeric ? text(cell) : cell;
          return made;
        }));
        return line;
      }));
      count.textContent = kept.length.toLocaleString("en") + (kept.length === 1 ? " row" : " rows");
      where.textContent = (page + 1) + " of " + pages;
      back.disabled = page === 0;
      next.disabled = page === pages - 1;
      pager.hidden = pages === 1;
    };
    const select = () => {
      const wanted = filter.value.trim().toLowerCase();
      kept = wanted ? order.filter((at) => words[at].includes(wanted)) : order;
      page = 0;
      draw();
    };
    heads.forEach((head, position) => {
      const sort = () => {
        sign = column === position ? -sign : 1;
        column = position;
        for (const other of heads) delete other.dataset.sort;
        head.dataset.sort = sign;
        const numeric = head.classList.contains("num");
        order = rows.map((_, at) => at).sort((a, b) => {
          const one = rows[a][position], two = rows[b][position];
          if (one === two) return a - b;
          if (one === null) return 1;
          if (two === null) return -1;
          return sign * (numeric ? one - two : String(one).localeCompare(String(two), "en", {numeric: true}));
        });
        select();
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
    filter.addEventListener("input", select);
    box.classList.add("ready");
    draw();
  }
})();
