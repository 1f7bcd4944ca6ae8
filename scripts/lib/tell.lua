-- lib/tell: those that wait are told that the lock is free. A primitive with other waiters has a tell of its own.
-- defines  tell(command)
local function tell(command)
  redis.call(command, KEYS[2], '0')
end
