-- fairlock/notify_free: hand the free lock off to the next waiter in the queue.
-- uses     fairlock/queue, fairlock/hand_off
-- defines  notify_free(keys, publish): returns nil. keys are the KEYS of the calling script
local function notify_free(keys, publish)
  hand_off(fair_lock(keys), publish)
end
