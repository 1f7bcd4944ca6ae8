-- lib/tell: those that wait are told that the lock is free. A primitive with other waiters has a tell of its own.
-- defines  tell(command): how many heard it, nil if that is not known
local function tell(command)
  return redis.call(command, KEYS[2], '0')
end
