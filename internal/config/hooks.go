package config

// configuredHook is a dead-letter hook of a pipeline.
type configuredHook struct {
	// of is the pipeline as the hook sees it: with the retry of its sink.
	of   *Pipeline
	sink *Sink
	// name is for people: "dead_letter.hook", for the hook of one of several sinks with its name before it; path is that of the key.
	name, path string
}

// SinkHooks are the names of those of several sinks that have a hook of their own.
func (p *Pipeline) SinkHooks() (names []string) {
	for i := range p.Sinks {
		if p.Sinks[i].DeadLetter.Hook != nil {
			names = append(names, p.Sinks[i].Name)
		}
	}
	return names
}

// hooks are the pipeline's hook, if it has one, and those of its sinks.
func (p *Pipeline) hooks() (all []configuredHook) {
	const key = "dead_letter.hook"
	if h := p.DeadLetter.Hook; h != nil {
		all = append(all, configuredHook{p, h, key, key})
	}
	if p.Sinks == nil {
		return all
	}
	for _, one := range p.PerSink() {
		if h := one.DeadLetter.Hook; h != nil {
			all = append(all, configuredHook{one, h, one.SinkName + "." + key, "sinks." + key})
		}
	}
	return all
}
