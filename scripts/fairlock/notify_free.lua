-- fairlock/notify_free: hand the free lock off to the next waiter, or tell it of a shorter TTL.
-- uses     fairlock/queue, fairlock/hand_off
-- defines  notify_free(keys, publish), notify_rest(keys, publish): return nil. keys are the KEYS of
--          the calling script
local function notify_free(keys, publish)
  hand_off(fair_lock(keys), publish)
end

local function notify_rest(keys, publish)
  tell_head(fair_lock(keys), publish)
end
