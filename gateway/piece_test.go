package gateway

import (
	"testing"
	"time"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// While a worker is away there is a piece each half second, for ten minutes: they get no
// shorter, as they would by an overflow, which then asks without a pause.
func TestPiecesOfALongWait(t *testing.T) {
	piece := firstPiece
	for range wire.MaxWaitMS * time.Millisecond / waitPause {
		next := longer(piece)
		if next < piece || next > wire.MaxWaitMS*time.Millisecond {
			t.Fatalf("a piece of %v after one of %v", next, piece)
		}
		piece = next
	}
}
