//go:build unix

package chaos

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testkit"
)

// soakChart draws each of soakMetrics over time, in a row of its own from zero to its highest value, as an SVG.
func soakChart(samples [][]float64, every time.Duration) string {
	const left, width, row, height, gap = 260, 560, 64, 44, 28
	var chart strings.Builder
	fmt.Fprintf(&chart, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n"+
		`<rect width="100%%" height="100%%" fill="white"/>`+"\n", left+width+gap, gap+row*len(soakMetrics)+gap)
	for i, m := range soakMetrics {
		top := gap + i*row
		most := highest(samples, i, 0, 4)
		fmt.Fprintf(&chart, `<text x="8" y="%d">%s</text><text x="8" y="%d" fill="#666">at most %s</text>`+"\n", top+18, m.name, top+36, soakValue(m.name, most))
		fmt.Fprintf(&chart, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#ccc"/>`+"\n", left, top+height, left+width, top+height)
		var points []string
		for n, s := range samples {
			x := left + width*float64(n)/float64(max(1, len(samples)-1))
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, float64(top)+height*(1-s[i]/max(1, most))))
		}
		fmt.Fprintf(&chart, `<polyline fill="none" stroke="#1f6feb" stroke-width="1.5" points="%s"/>`+"\n", strings.Join(points, " "))
	}
	took := every * time.Duration(max(0, len(samples)-1))
	bottom := gap + row*len(soakMetrics) + 8
	fmt.Fprintf(&chart, `<text x="%d" y="%d" fill="#666">0</text><text x="%d" y="%d" fill="#666" text-anchor="end">%s</text>`+"\n</svg>\n",
		left, bottom, left+width, bottom, took.Round(time.Second))
	return chart.String()
}

// soakValue writes bytes as MiB.
func soakValue(metric string, value float64) string {
	if strings.HasSuffix(metric, "_bytes") {
		return fmt.Sprintf("%.1f MiB", value/(1<<20))
	}
	return fmt.Sprintf("%.0f", value)
}

// TestSoakChart: the chart is well-formed, has a line for each metric with all samples, and its highest value.
func TestSoakChart(t *testing.T) {
	t.Parallel()
	samples := make([][]float64, 5)
	for n := range samples {
		samples[n] = slices.Repeat([]float64{float64(1+n) * (1 << 20)}, len(soakMetrics))
	}
	d := xml.NewDecoder(strings.NewReader(soakChart(samples, time.Minute)))
	lines, text := 0, ""
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.NoError(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "polyline" {
				lines++
				testkit.Equal(t, "samples of a line", len(strings.Fields(token.Attr[len(token.Attr)-1].Value)), len(samples))
			}
		case xml.CharData:
			text += string(token)
		}
	}
	testkit.Equal(t, "lines", lines, len(soakMetrics))
	for _, want := range []string{"at most 5.0 MiB", "at most 5242880", "4m0s"} {
		if !strings.Contains(text, want) {
			t.Errorf("the chart does not say %q: %s", want, text)
		}
	}
}
