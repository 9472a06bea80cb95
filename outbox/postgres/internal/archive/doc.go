// Package archive puts archived events back into the buffer:
//
//	archived ──replay──▶ waiting, under the old id and a new group_id ──delivered──▶ archived again
package archive
