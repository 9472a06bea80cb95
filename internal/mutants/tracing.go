package main

// tracingMutants are about spans, and what consumers get of them.
var tracingMutants = []mutant{
	{
		name: "an event's own trace is replaced",
		file: "internal/tracing/carry.go",
		old:  `strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate")`,
		new:  `strings.EqualFold(name, "tracestate")`,
		pkg:  "./internal/tracing", test: "TestCarry",
	},
	{
		name: "a batch that is sent again carries a trace",
		file: "internal/tracing/carry.go",
		old:  " || !b.FirstSend || b.DeadLetters != nil {",
		new:  " {",
		pkg:  "./internal/tracing", test: "TestCarry",
	},
	{
		name: "a message that its trace makes too large is refused",
		file: "sink/natssink/natssink.go",
		old:  "	if carrying != b {\n",
		new:  "	if carrying == nil {\n",
		pkg:  "./sink/natssink", test: "TestSend_TooLargeWithTrace",
	},
	{
		name: "a request has no traceparent",
		file: "sink/httpsink/request.go",
		old:  "	tracing.Inject(ctx, req.Header)\n",
		new:  "	_ = tracing.Inject\n",
		pkg:  "./internal/cli", test: "TestRun_Traces",
	},
	{
		name: "the texts of spans have secrets",
		file: "internal/tracing/tracing.go",
		old:  "		text = s.redact(text)\n",
		new:  "",
		pkg:  "./internal/tracing", test: "TestTracer_Spans",
	},
	{
		name: "a wrong variable leaves traces on",
		file: "internal/tracing/export/settings.go",
		old:  "if !named || wrong != nil {",
		new:  "if !named {",
		pkg:  "./internal/tracing/export", test: "TestRead_Mistakes",
	},
	{
		name: "a database that is away is traced at every count",
		file: "internal/tracing/failures.go",
		old:  "		l.next = now.Add(l.every)\n",
		new:  "",
		pkg:  "./internal/tracing", test: "TestTracer_Failures",
	},
	{
		name: "counts that fail are not traced",
		file: "pipeline/trace.go",
		old:  "	c.tracer.DatabaseFailed(ctx, \"count\", began, err)\n",
		new:  "	_ = began\n",
		pkg:  "./internal/cli", test: "TestRun_TracesOfOutages",
	},
	{
		name: "the span of a refused send names an event whose address is away",
		file: "delivery/trace.go",
		old:  "!errors.Is(one.Err, sink.ErrUnavailable)",
		new:  "one.Err != nil",
		pkg:  "./delivery", test: "TestWork_Traces",
	},
}
