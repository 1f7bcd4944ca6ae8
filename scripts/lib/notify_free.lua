-- lib/notify_free: publish to the waiters that the lock is free. Fair locks have their own version.
-- defines  notify_free(keys, publish): how many received the message, nil if that is not known.
--          keys are the KEYS of the calling script; KEYS[2] of every lock's script is its channel
local function notify_free(keys, publish)
  local channel = keys[2]
  return redis.call(publish, channel, '0')
end
