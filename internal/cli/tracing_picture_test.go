package cli

import (
	"cmp"
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// picture draws the spans of TestRun_Traces into docs/traces.svg, with -update. Spans of one trace stand together, children below their parents.
func picture(t *testing.T, spans []serviceSpan) {
	t.Helper()
	const (
		width, left, row, top = 960, 330, 22, 34
		right, label          = 70, 55 // label is the width of a duration
	)
	byStart := func(a, b serviceSpan) int { return cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()) }
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, byStart)
	children, known := map[string][]serviceSpan{}, map[string]bool{}
	for _, s := range spans {
		known[string(s.GetSpanId())] = true
		children[string(s.GetParentSpanId())] = append(children[string(s.GetParentSpanId())], s)
	}
	begin, end := spans[0].GetStartTimeUnixNano(), uint64(0)
	for _, s := range spans {
		end = max(end, s.GetEndTimeUnixNano())
	}
	x := func(at uint64) float64 { return left + float64(at-begin)/float64(end-begin)*(width-left-right) }
	colours := map[string]string{"shop": "#2563eb", "relay of shop": "#d97706", "crm": "#7c3aed", "mail": "#059669", "search": "#db2777"}
	var (
		out  strings.Builder
		y    = top
		rows = map[string]int{}
		bars strings.Builder
	)
	var add func(s serviceSpan, depth int)
	add = func(s serviceSpan, depth int) {
		rows[string(s.GetSpanId())] = y
		name := s.GetName()
		if sink := attributes(s.GetAttributes())["relay.sink"]; sink != "" && depth == 0 {
			name += " (sink " + sink + ")"
		}
		took := time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano())
		from, to := x(s.GetStartTimeUnixNano()), x(s.GetEndTimeUnixNano())
		fmt.Fprintf(&bars, `<text x="%d" y="%d"><tspan fill="%s" font-weight="bold">%s</tspan> %s</text>`+"\n", 12+16*depth, y+15, colours[s.service], html.EscapeString(s.service), html.EscapeString(name))
		fmt.Fprintf(&bars, `<rect x="%.1f" y="%d" width="%.1f" height="12" rx="2" fill="%s"/>`+"\n", from, y+5, max(2, to-from), colours[s.service])
		fmt.Fprintf(&bars, `<text x="%.1f" y="%d" fill="#57606a" font-size="11">%s</text>`+"\n", max(from+2, to)+5, y+15, strings.Replace(fmt.Sprintf("%.1f ms", took.Seconds()*1000), "0.0 ms", "&lt; 0.1 ms", 1))
		y += row
		for _, child := range children[string(s.GetSpanId())] {
			add(child, depth+1)
		}
	}
	for _, s := range spans {
		if known[string(s.GetParentSpanId())] {
			continue
		}
		fmt.Fprintf(&bars, `<line x1="0" y1="%d" x2="%d" y2="%d" stroke="#d0d7de"/>`+"\n", y, width, y)
		y += 4
		add(s, 0)
		y += 4
	}
	var links strings.Builder
	for _, s := range spans {
		for _, l := range s.GetLinks() {
			linked := slices.IndexFunc(spans, func(other serviceSpan) bool { return string(other.GetSpanId()) == string(l.GetSpanId()) })
			if linked < 0 {
				t.Fatalf("a link of %s leads nowhere", s.GetName())
			}
			from, to := rows[string(s.GetSpanId())]+11, rows[string(l.GetSpanId())]+11
			at, end := x(s.GetStartTimeUnixNano()), x(spans[linked].GetEndTimeUnixNano())+label
			fmt.Fprintf(&links, `<path d="M %.1f %d C %.1f %d, %.1f %d, %.1f %d" fill="none" stroke="#57606a" stroke-dasharray="4 3" marker-end="url(#arrow)"/>`+"\n",
				at, from, at-60, from, at-30, to, end, to)
		}
	}
	height := y + 34
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#1f2328">`+"\n", width, height)
	out.WriteString("<title>Spans of an application, the relay and three consumers, drawn from an export of a test run</title>\n")
	out.WriteString(`<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="#57606a"/></marker></defs>` + "\n")
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#ffffff" stroke="#d0d7de"/>`+"\n", width, height)
	fmt.Fprintf(&out, `<text x="12" y="22" font-weight="bold">service and span</text><text x="%d" y="22" fill="#57606a">0 ms</text><text x="%d" y="22" fill="#57606a" text-anchor="end">%.0f ms</text>`+"\n",
		left, width-right, float64(end-begin)/1e6)
	out.WriteString(bars.String())
	out.WriteString(links.String())
	fmt.Fprintf(&out, `<line x1="0" y1="%d" x2="%d" y2="%d" stroke="#d0d7de"/>`+"\n", y, width, y)
	fmt.Fprintf(&out, `<text x="12" y="%d" fill="#57606a">Indented: child spans of one trace. Dashed: links from a batch to the trace that an event brought.</text>`+"\n</svg>\n", y+22)
	if err := os.WriteFile("../../docs/traces.svg", []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
