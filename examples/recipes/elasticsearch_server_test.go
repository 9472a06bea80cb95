package recipes_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
)

// elasticServer is Elasticsearch's _bulk: pairs of lines, an answer for each in the same
// order, external versions, a limit for the body, and a write queue that gets full.
//
// https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk
// https://www.elastic.co/docs/troubleshoot/elasticsearch/rejected-requests (429)
// https://www.elastic.co/docs/reference/elasticsearch/configuration-reference/networking-settings (http.max_content_length: 413)
type elasticServer struct {
	*api
	documents map[string]elasticDocument // by _id
	maxBytes  int
	full      map[string]bool // _ids that find the write queue full, for the first time
	tooLarge  int             // 413s
}

type elasticDocument struct {
	version int64
	price   string
}

type elasticError struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

const elasticKey = "VnVhQ2ZHY0JDZGJrUW0tZTVhT3g6czNjcmV0"

func newElastic(t *testing.T) *elasticServer {
	e := &elasticServer{documents: map[string]elasticDocument{}, maxBytes: 100_000, full: map[string]bool{}}
	e.api = newAPI(t, append([]fault{empty}, slowDay...), e.bulk, map[fault]func(http.ResponseWriter){
		empty: func(w http.ResponseWriter) { say(w, http.StatusOK, map[string]any{"errors": false, "items": []any{}}) },
		busy: func(w http.ResponseWriter) {
			elasticFailed(w, http.StatusTooManyRequests, "circuit_breaking_exception", "[parent] Data too large")
		},
		down: func(w http.ResponseWriter) {
			elasticFailed(w, http.StatusServiceUnavailable, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];")
		},
	})
	return e
}

func elasticFailed(w http.ResponseWriter, status int, kind, reason string) {
	say(w, status, map[string]any{"error": elasticError{kind, reason}, "status": status})
}

func (e *elasticServer) bulk(w http.ResponseWriter, r *http.Request, body []byte) {
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/_bulk":
		http.NotFound(w, r)
		return
	case r.Header.Get("Authorization") != "ApiKey "+elasticKey:
		elasticFailed(w, http.StatusUnauthorized, "security_exception", "unable to authenticate with provided credentials")
		return
	case r.Header.Get("Content-Type") != "application/x-ndjson":
		elasticFailed(w, http.StatusNotAcceptable, "media_type_header_exception", "Invalid media-type value on headers [Content-Type]")
		return
	case len(body) > e.maxBytes:
		e.tooLarge++
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case !bytes.HasSuffix(body, []byte("\n")):
		elasticFailed(w, http.StatusBadRequest, "illegal_argument_exception", "The bulk request must be terminated by a newline [\\n]")
		return
	}
	lines := bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n"))
	if len(lines)%2 != 0 {
		elasticFailed(w, http.StatusBadRequest, "illegal_argument_exception", "Malformed action/metadata line")
		return
	}
	errors, items := false, []any{}
	for i := 0; i < len(lines); i += 2 {
		status, answer := e.index(r, lines[i], lines[i+1])
		if answer == nil {
			elasticFailed(w, http.StatusBadRequest, "illegal_argument_exception", fmt.Sprintf("Malformed action/metadata line [%d]", i+1))
			return
		}
		errors = errors || status >= 300
		answer["status"] = status
		items = append(items, map[string]any{"index": answer})
	}
	say(w, http.StatusOK, map[string]any{"took": 30, "errors": errors, "items": items})
}

// index indexes a document. It returns no answer for a malformed action.
func (e *elasticServer) index(r *http.Request, action, source []byte) (int, map[string]any) {
	var line struct {
		Index *struct {
			Index       string      `json:"_index"`
			ID          string      `json:"_id"`
			Version     json.Number `json:"version"`
			VersionType string      `json:"version_type"`
		}
	}
	if decode(action, &line) != nil || line.Index == nil || line.Index.Index != "products" || line.Index.VersionType != "external_gte" {
		return 0, nil
	}
	version, err := line.Index.Version.Int64()
	if err != nil {
		return 0, nil
	}
	id := line.Index.ID
	answer := map[string]any{"_index": "products", "_id": id}
	var document struct{ Name, Price string }
	if decode(source, &document) != nil {
		return 0, nil
	}
	if _, err := strconv.ParseFloat(document.Price, 64); err != nil {
		answer["error"] = elasticError{
			"document_parsing_exception",
			fmt.Sprintf("[1:20] failed to parse field [price] of type [float] in document with id '%s'. Preview of field's value: '%s'", id, document.Price),
		}
		return http.StatusBadRequest, answer
	}
	if e.full[id] {
		delete(e.full, id)
		answer["error"] = elasticError{"es_rejected_execution_exception", "rejected execution of coordinating operation [coordinating_and_primary_bytes=0]"}
		return http.StatusTooManyRequests, answer
	}
	known, there := e.documents[id]
	if there && version < known.version {
		answer["error"] = elasticError{
			"version_conflict_engine_exception",
			fmt.Sprintf("[%s]: version conflict, current version [%d] is higher than the one provided [%d]", id, known.version, version),
		}
		return http.StatusConflict, answer
	}
	e.documents[id] = elasticDocument{version, document.Price}
	e.accept(r, strconv.FormatInt(version, 10))
	answer["_version"], answer["result"] = version, "created"
	if there {
		answer["result"] = "updated"
		return http.StatusOK, answer
	}
	return http.StatusCreated, answer
}
