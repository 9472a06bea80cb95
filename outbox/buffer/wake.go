package buffer

// WakeMode is how a relay hears of fresh events between two distributions.
type WakeMode string

// The wake modes.
const (
	// WakeAuto is WakeNotify where its trigger is installed, else WakePoll; the zero
	// value means it too.
	WakeAuto WakeMode = "auto"
	// WakePoll looks for them.
	WakePoll WakeMode = "poll"
	// WakeNotify is rung by a trigger on the buffer table.
	WakeNotify WakeMode = "notify"
)
