package httpsink

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// signer signs requests as Standard Webhooks says
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md). nil signs
// nothing.
//
// It signs the body before compression. Receivers can always check that, while a proxy or a framework that
// decompresses hides the bytes that were sent.
type signer []byte

var errSign = errors.New("sign is not a signing secret; expected whsec_ and 24 to 64 bytes in base64")

func newSigner(secret string) (signer, error) {
	if secret == "" {
		return nil, nil
	}
	text, ok := strings.CutPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errSign
	}
	return key, nil
}

// sign adds the headers. id is the same in each attempt, and the time is that of this attempt, so that
// receivers can reject old ones.
func (s signer) sign(h http.Header, id string, now time.Time, body []byte) {
	if s == nil {
		return
	}
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}
