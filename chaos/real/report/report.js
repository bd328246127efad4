// Marks the time under the pointer. The page says all it has to say without it.
(function () {
  var note = document.getElementById("time");
  document.querySelectorAll("tr.here").forEach(function (row) {
    var box = row.closest(".scroll");
    box.scrollTop += row.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
  });
  document.querySelectorAll("svg.chart").forEach(function (svg) {
    var d = svg.dataset, left = +d.left, right = +d.right, from = +d.from, to = +d.to;
    var cursor = svg.querySelector(".cursor"), box = svg.viewBox.baseVal;
    svg.addEventListener("mousemove", function (e) {
      var r = svg.getBoundingClientRect(), x = (e.clientX - r.left) / r.width * box.width;
      if (x < left || x > right) { return; }
      cursor.setAttribute("d", "M" + x.toFixed(1) + " 0V" + box.height);
      note.textContent = (from + (x - left) / (right - left) * (to - from)).toFixed(to - from < 5 ? 4 : 2) + " s";
      note.hidden = false;
    });
    svg.addEventListener("mouseleave", function () { cursor.setAttribute("d", ""); note.hidden = true; });
  });
})();
