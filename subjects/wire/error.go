package wire

import "fmt"

// Code is a stable error code. Codes are added and documented, never renamed or reused.
type Code string

// Codes. The first 23 are P40's; the rest are ours.
const (
	CodeInvalidArguments               Code = "invalid_arguments"
	CodeInvalidSettings                Code = "invalid_settings"
	CodeProcessQuotaExceeded           Code = "process_quota_exceeded"
	CodeOutputQuotaExceeded            Code = "output_quota_exceeded"
	CodeLifetimeEnforcementUnavailable Code = "lifetime_enforcement_unavailable"
	CodeProcessNotificationsUnsupp     Code = "process_notifications_unsupported"
	CodeSpawnFailed                    Code = "spawn_failed"
	CodeProcessSetupFailed             Code = "process_setup_failed"
	CodePTYUnavailable                 Code = "pty_unavailable"
	CodeNotFound                       Code = "not_found"
	CodeStdinClosed                    Code = "stdin_closed"
	CodeInputBackpressure              Code = "input_backpressure"
	CodeCursorGap                      Code = "cursor_gap"
	CodeCursorAhead                    Code = "cursor_ahead"
	CodeTimedOut                       Code = "timed_out"
	CodeInterrupted                    Code = "interrupted"
	CodeTerminated                     Code = "terminated"
	CodeKilled                         Code = "killed"
	CodeSupervisorShuttingDown         Code = "supervisor_shutting_down"
	CodeManifestCorrupt                Code = "manifest_corrupt"
	CodeSpoolCorrupt                   Code = "spool_corrupt"
	CodeLostOnRestore                  Code = "lost_on_restore"
	CodeTeardownFailed                 Code = "teardown_failed"

	CodeNotBuilt           Code = "not_built"           // a field of a later version
	CodeUnknownField       Code = "unknown_field"       // names the nearest
	CodeUnsupportedVersion Code = "unsupported_version" // schema version not known here
	CodeExecutionConflict  Code = "execution_conflict"  // same execution id, other request hash
	CodeExecutionCancelled Code = "execution_cancelled" // cancelled before its start arrived
	CodeSessionClosed      Code = "session_closed"      // the session has ended
	CodeExpired            Code = "expired"             // output evicted or past its retention; the receipt remains
	CodeDeliveryUnknown    Code = "delivery_unknown"    // stdin write of unknown outcome; do not retry
	CodeUnreachable        Code = "unreachable"         // the owner does not answer; not final
	CodeUnavailable        Code = "unavailable"         // the store or the bus is away; nothing was started
	CodeOverloaded         Code = "overloaded"          // a mailbox or queue is full
	CodeDenied             Code = "denied"              // the policy says no
	CodeWorkdirNotFound    Code = "workdir_not_found"   // cwd is missing or not a directory
	CodeCapabilityMissing  Code = "capability_missing"  // this host cannot do what was asked
	CodeDeadlineExceeded   Code = "deadline_exceeded"   // the request's own deadline passed
	CodeOffsetConflict     Code = "offset_conflict"     // a stdin write at another offset than the next
	CodeInternal           Code = "internal"            // a fault of ours; the text says nothing of it
)

// Error is every failure a caller sees: a stable code, a text for people, the field
// at fault when there is one, and structured details.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`
	Field   string         `json:"field,omitempty"`
	Details map[string]any `json:"details,omitempty"`
}

// Error gives the text with its code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Code) }

// Is matches another *Error by code, so that errors.Is(err, &Error{Code: c}) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errorf makes an error of a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid is an invalid_arguments error that names the field.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalidArguments, Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

// NoProcess is the answer to a process that never was, and to one that the caller may not
// know of (P26): nobody tells them apart.
func NoProcess(id string) *Error {
	return &Error{Code: CodeNotFound, Field: "process", Message: "process: there is no process " + id}
}
