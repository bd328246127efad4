package main

// What of Grafana's dashboard model is used here, with names as in its JSON.

type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Editable      bool       `json:"editable"`
	Refresh       string     `json:"refresh"`
	GraphTooltip  int        `json:"graphTooltip"` // 1: one crosshair for all panels
	Time          timeRange  `json:"time"`
	Templating    templating `json:"templating"`
	Panels        []jsonAny  `json:"panels"`
}

type jsonAny = map[string]any

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type templating struct {
	List []jsonAny `json:"list"`
}

// source is the data source that the reader of a dashboard picks.
var source = jsonAny{"type": "prometheus", "uid": "${datasource}"}

// variable asks Prometheus for the values of a label.
func variable(name, label, query string) jsonAny {
	return jsonAny{
		"name": name, "label": label, "type": "query", "datasource": source,
		"query":   jsonAny{"query": query, "refId": name},
		"refresh": 2, "sort": 1, "multi": true, "includeAll": true, "allValue": ".*",
		"current": jsonAny{"text": "All", "value": "$__all"},
	}
}

// row is a line of panels under a title.
type row struct {
	title  string
	panels []panel
}

// panel is one figure or graph.
type panel struct {
	title   string
	help    string // what it shows, and what to think of it
	kind    string // timeseries, stat, state-timeline or table
	unit    string // of Grafana: s, percentunit, ops, short, bytes …
	width   int    // of 24
	queries []query
	steps   []step // colours by value, rising
	min     *float64
	values  map[string]string // texts in place of values
}

// query is an expression of PromQL and the legend of its series.
type query struct{ expr, legend string }

// step is a colour from a value on; the first has none.
type step struct {
	from  float64
	color string
}

const height = 8

// build lays rows of panels out, top down and left to right, and numbers them.
func build(rows []row) dashboard {
	d := dashboard{
		UID: "allocator", Title: "allocator", Tags: []string{"allocator"},
		Description:   "Nodes that issue unique, time-sorted IDs: what they serve, what they refuse, and how far their clocks and windows can be trusted.",
		SchemaVersion: 39, Refresh: "30s", GraphTooltip: 1,
		Time: timeRange{From: "now-3h", To: "now"},
		Templating: templating{List: []jsonAny{
			{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("space", "Space", `label_values(allocator_node_info, space)`),
			variable("namespace", "Namespace", `label_values(allocator_node_info{space=~"$space"}, namespace)`),
			variable("job", "Job", `label_values(allocator_node_info{space=~"$space", namespace=~"$namespace"}, job)`),
			variable("instance", "Instance", `label_values(allocator_node_info{space=~"$space", namespace=~"$namespace", job=~"$job"}, instance)`),
		}},
	}
	id, y := 0, 0
	for _, r := range rows {
		id++
		d.Panels = append(d.Panels, jsonAny{
			"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []jsonAny{},
			"gridPos": grid(0, y, 24, 1),
		})
		y++
		x := 0
		for _, p := range r.panels {
			if x+p.width > 24 {
				x, y = 0, y+height
			}
			id++
			d.Panels = append(d.Panels, p.json(id, grid(x, y, p.width, height)))
			x += p.width
		}
		y += height
	}
	return d
}

func grid(x, y, w, h int) jsonAny { return jsonAny{"x": x, "y": y, "w": w, "h": h} }

func (p panel) json(id int, at jsonAny) jsonAny {
	targets := make([]jsonAny, len(p.queries))
	for i, q := range p.queries {
		targets[i] = jsonAny{"refId": string(rune('A' + i)), "datasource": source, "expr": q.expr, "legendFormat": q.legend}
		if p.kind == "stat" || p.kind == "table" {
			targets[i]["instant"] = true
		}
		if p.kind == "table" {
			targets[i]["format"] = "table"
		}
	}
	defaults := jsonAny{"unit": p.unit}
	if p.min != nil {
		defaults["min"] = *p.min
	}
	if len(p.steps) > 0 {
		list := make([]jsonAny, len(p.steps))
		for i, s := range p.steps {
			list[i] = jsonAny{"color": s.color, "value": s.from}
			if i == 0 {
				list[i]["value"] = nil
			}
		}
		defaults["thresholds"] = jsonAny{"mode": "absolute", "steps": list}
		defaults["color"] = jsonAny{"mode": "thresholds"}
	}
	if len(p.values) > 0 {
		options := jsonAny{}
		for v, text := range p.values {
			options[v] = jsonAny{"text": text}
		}
		defaults["mappings"] = []jsonAny{{"type": "value", "options": options}}
	}
	out := jsonAny{
		"id": id, "type": p.kind, "title": p.title, "description": p.help, "gridPos": at,
		"datasource": source, "targets": targets,
		"fieldConfig": jsonAny{"defaults": defaults, "overrides": []jsonAny{}},
	}
	switch p.kind {
	case "stat":
		out["options"] = jsonAny{
			"reduceOptions": jsonAny{"calcs": []string{"lastNotNull"}}, "colorMode": "background", "graphMode": "none", "textMode": "value_and_name",
		}
	case "timeseries":
		defaults["custom"] = jsonAny{"lineWidth": 1, "fillOpacity": 5, "showPoints": "never", "thresholdsStyle": jsonAny{"mode": lines(p.steps)}}
		if len(p.steps) > 0 {
			defaults["color"] = jsonAny{"mode": "palette-classic"}
		}
		out["options"] = jsonAny{"legend": jsonAny{"displayMode": "list", "placement": "bottom"}, "tooltip": jsonAny{"mode": "multi", "sort": "desc"}}
	}
	return out
}

// lines says whether thresholds are drawn into a graph.
func lines(steps []step) string {
	if len(steps) > 0 {
		return "line"
	}
	return "off"
}
