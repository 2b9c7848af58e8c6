package wire

// EncodeReply encodes an answer: result, or err through [AsError] when it is not nil.
func EncodeReply[T any](contentType string, result *T, err error) ([]byte, error) {
	r := Reply[T]{Version: Version}
	if err != nil {
		r.Error = AsError(err)
	} else {
		r.Result = result
	}
	return Marshal(contentType, &r)
}

// DecodeReply decodes an answer. An error in it comes back as the error, an *[Error].
func DecodeReply[T any](contentType string, data []byte) (*T, error) {
	var r Reply[T]
	if err := Unmarshal(contentType, data, &r, false); err != nil {
		return nil, err
	}
	if r.Version != Version {
		return nil, unsupportedVersion("version", r.Version)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	if r.Result == nil {
		return nil, Errorf(CodeInternal, "the answer holds neither a result nor an error")
	}
	return r.Result, nil
}
