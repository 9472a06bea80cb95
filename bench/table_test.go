package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table formats results for people.
type table struct {
	head []string
	rows [][]string
}

// add adds a row; numbers have about three significant digits.
func (t *table) add(name string, values ...any) {
	row := []string{name}
	for _, v := range values {
		if f, ok := v.(float64); ok {
			v = digits(f)
		}
		row = append(row, fmt.Sprint(v))
	}
	t.rows = append(t.rows, row)
}

func digits(f float64) string {
	switch size := math.Abs(f); {
	case math.IsNaN(f):
		return "–"
	case size >= 100:
		return fmt.Sprintf("%.0f", f)
	case size >= 10:
		return fmt.Sprintf("%.1f", f)
	default:
		return fmt.Sprintf("%.2f", f)
	}
}

// String returns the table as aligned Markdown.
func (t table) String() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line := func(cells []string) {
		fmt.Fprintln(w, "| "+strings.Join(cells, "\t| ")+"\t|")
	}
	line(t.head)
	line(strings.Split(strings.Repeat("--- ", len(t.head)-1)+"---", " "))
	for _, row := range t.rows {
		line(row)
	}
	if err := w.Flush(); err != nil { // a strings.Builder takes everything
		return err.Error()
	}
	return text.String()
}

// median of nothing is NaN.
func median(of []float64) float64 { return quantile(of, 0.5) }

// quantile returns the smallest value that is not below a share q of all values; NaN
// of nothing.
func quantile(of []float64, q float64) float64 {
	if len(of) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
